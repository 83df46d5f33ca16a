"""A NATS server of this machine that may come back on another port: NATS_URL names a file, file:///path, with the present URL in it.

The server's starter writes the file, and clients read it at each connection. The server must belong to the owner of the file: no other program gets
the login.
"""

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

SCHEME = "file://"


def named_file(url: str) -> Path | None:
    """The file that a URL names; None: it names a server."""
    if not url.startswith(SCHEME):
        return None
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.netloc.lower() in ("", "localhost") else None


def url_of_file(file: Path) -> str:
    return SCHEME + quote(str(file))


def read_address(file: Path) -> tuple[str, int]:
    """(URL of the server, user id of the file's owner). Raises OSError."""
    with file.open(encoding="utf-8") as opened:
        return opened.read().strip(), os.fstat(opened.fileno()).st_uid
