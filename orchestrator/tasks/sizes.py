"""Limits of the texts of a task that are parsed: `task.toml` and Dockerfiles, and of the variables that they set. Each is checked before the work
that would grow with a longer text, so one task cannot hold up or fill the process that reads it.

Linux starts no program with a variable of 131,072 bytes or more, its name included, or with more than a quarter of the stack's limit in all.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from sandboxes.base import AnyFile
from sandboxes.text_files import text_of

TASK_TOML_BYTES: Final = 256 << 10
MAX_DEPTH: Final = 32
"""Parts of a dotted key or of the name of a table, and levels of lists and tables in a value."""
DOCKERFILE_BYTES: Final = 256 << 10
MAX_INSTRUCTIONS: Final = 2000
MAX_COPIED: Final = 500_000
"""Files, links and directories that all COPY lines of a Dockerfile place."""
MAX_SEARCHED: Final = 2_000_000
"""Sources that they name, and entries that they look through for directories and wildcards."""
VARIABLE_BYTES: Final = 120 << 10
"""Of one variable, with its name."""
VARIABLES_BYTES: Final = 1 << 20
"""Of all variables of a program."""
_EACH: Final = 10  # bytes of a variable besides its name and value: "=", NUL and its address

_QUOTED: Final = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\[^\n]|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|\#[^\n]*",
    re.DOTALL,
)
"""Strings and comments of TOML. Each alternative always matches once it has started, so that a scan is linear; a string that does not end is an
error that the parser finds."""
_KEYS: Final = re.compile(r"[^\w\-. \t]+")


class TooLarge(ValueError):
    """One sentence that names what is too large, and the limit."""


def read_task_toml(toml: str) -> dict[str, Any]:
    """The tables of a `task.toml`. Raises TooLarge, and the errors of `tomllib.loads`, whose work grows with the square of a key's parts."""
    if (size := len(toml.encode(errors="replace"))) > TASK_TOML_BYTES:
        raise TooLarge(
            f"task.toml has {size:,} bytes, and may have {TASK_TOML_BYTES:,}: put long texts into files of the task"
        )
    bare = _QUOTED.sub(lambda found: "x" if found[0][0] != "#" else "", toml)
    for number, line in enumerate(bare.split("\n") if _is_deep(bare) else (), start=1):
        if max(map(_parts, _KEYS.split(line))) > MAX_DEPTH:
            at = f" line {number}" if bare.count("\n") == toml.count("\n") else ""
            raise TooLarge(
                f"task.toml{at} has a key of more than {MAX_DEPTH} parts between dots: use fewer tables inside of each other"
            )
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if depth > MAX_DEPTH:
            raise TooLarge(
                f"task.toml: not valid TOML: it is nested more than {MAX_DEPTH} levels deep, use fewer lists and tables"
            )
    return tomllib.loads(toml)


def _is_deep(bare: str) -> bool:
    return any(_parts(piece) > MAX_DEPTH for piece in _KEYS.split(bare))


def _parts(piece: str) -> int:
    """Parts of the dotted key in a text without strings, brackets and signs: no number or date has more than one dot."""
    return piece.count(".") + 1


def dockerfile_text(file: AnyFile, shown: str) -> str:
    """The text of a Dockerfile; `shown` is its path in the task. TooLarge, and ValueError for another encoding than UTF-8."""
    check_dockerfile(file, shown)
    return text_of(file.data, shown)


def check_dockerfile(file: AnyFile, shown: str) -> None:
    """TooLarge for a Dockerfile of too many bytes."""
    if file.size > DOCKERFILE_BYTES:
        raise TooLarge(
            f"{shown} has {file.size:,} bytes, and may have {DOCKERFILE_BYTES:,}: put its long parts into files that it copies"
        )


def size_of(name: str, value: str) -> int:
    """Bytes that a variable takes of all that a program may have."""
    return len(name.encode(errors="replace")) + len(value.encode(errors="replace")) + _EACH


def check_variables(variables: Mapping[str, str], at: str) -> None:
    """TooLarge if no program could be started with these variables. `at`: where they are set; the sentence begins with it."""
    total = 0
    for name, value in variables.items():
        size = size_of(name, value)
        if size > VARIABLE_BYTES:
            raise TooLarge(f"{at}: {too_long(name)}")
        total += size
    if total > VARIABLES_BYTES:
        raise TooLarge(f"{at}: {too_many()}")


def too_long(name: str) -> str:
    """Why a variable is refused."""
    return f"the variable {quoted(name)} has more than {VARIABLE_BYTES:,} bytes, with which no program starts: put its value into a file"


def too_many() -> str:
    """Why variables are refused together."""
    return f"the variables have more than {VARIABLES_BYTES:,} bytes in all, with which no program starts: put long values into files"
