"""Files that the options of a PostgreSQL URL name. As every path in a file, they are relative to that file."""

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

FILE_OPTIONS: Final = ("passfile", "sslcert", "sslkey", "sslrootcert", "sslcrl")
"""The options of libpq that name a file."""
_SERVICE_FILE: Final = "servicefile"
_SYSTEM_ROOTS: Final = ("sslrootcert", "system")


def with_absolute_files(url: str, directory: Path) -> str:
    """`url` with the files of its options below `directory`; everything else stays as it is written.

    >>> with_absolute_files("postgresql://u@h/db?sslmode=verify-full&sslrootcert=certs/ca.pem", Path("/runs/first"))
    'postgresql://u@h/db?sslmode=verify-full&sslrootcert=/runs/first/certs/ca.pem'
    """
    before, mark, query = url.partition("?")
    return before + mark + "&".join(_absolute(option, directory) for option in query.split("&"))


def _absolute(option: str, directory: Path) -> str:
    name, _, value = option.partition("=")
    known, file = unquote(name), unquote(value)
    if not file or known not in (*FILE_OPTIONS, _SERVICE_FILE) or (known, file) == _SYSTEM_ROOTS:
        return option
    if file.startswith("/") or (known == _SERVICE_FILE and file.startswith("~")):
        return option
    return f"{name}={quote(str(directory / file))}"
