"""Rows of SWE-bench, SWE-gym, SWE-rebench and SWE-smith: a JSON object per line, or one array of objects.

In SWE-smith, `patch` makes the fault, no `test_patch` exists, and the tests are those of the repository. Its rows are known by the `repo` that
begins with `swesmith/`, or the image of that name.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.importing.place import refused
from orchestrator.tasks.importing.report import Imported

MAX_LINE_BYTES: Final = 64 << 20
MAX_ARRAY_BYTES: Final = 256 << 20
"""Of a file that is one array, which is read as a whole."""
IMAGES: Final = ("image_name", "docker_image", "image")
COMMANDS: Final = ("test_cmd", "test_cmds")
SMITH: Final = "swesmith"
_MAY_BE_NULL: Final = "PASS_TO_PASS"
_REPO: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_SUFFIX: Final = re.compile(r"\.([0-9a-f]{7,40})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row. `patch` repairs the repository at `commit`, or with `breaks` makes its fault. `commit` None: that of the image. `tests`: changes of
    the tests, which stay hidden; `to_fix` and `to_keep`: names of the tests that must pass."""

    name: str
    repo: str
    commit: str | None
    patch: str
    tests: str
    statement: str
    to_fix: tuple[str, ...]
    to_keep: tuple[str, ...]
    image: str | None
    command: str | None
    breaks: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A row and its place in the file."""

    row: Row
    place: str


def read_rows(file: Path) -> Iterator[Placed | Imported]:
    """The rows of a file of lines, or of one array. One that cannot be read is refused alone, by its number. ValueError for a file that has none."""
    if not file.exists():
        raise ValueError(f"{file} does not exist: give a file of JSON lines")
    if not file.is_file():
        raise ValueError(f"{file} is not a file: give one of JSON lines")
    with file.open("rb") as lines:
        if b"\0" in lines.read(1024):
            raise ValueError(f"{file} is a binary file: give JSON lines, one object per task")
        if items := _array(file):
            yield from (_placed(each, f"{file} item {number}") for number, each in enumerate(items, 1))
            return
        lines.seek(0)
        number = rows = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.strip():
                continue
            rows += 1
            place = f"{file} line {number}"
            try:
                if len(line) > MAX_LINE_BYTES:
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(MAX_LINE_BYTES)
                    raise ValueError(f"it has more than {MAX_LINE_BYTES >> 20} MB")
                yield Placed(_row(_object(_json(line))), place)
            except ValueError as error:
                yield refused("", place, error)
    if not rows:
        raise ValueError(f"{file} holds no task: it has no line")


def _array(file: Path) -> list[Any]:
    """The items of a file that is one JSON array; none for a file of lines. ValueError for an array that cannot be read."""
    with file.open("rb") as stream:
        if not stream.read(1024).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            return []
    if file.stat().st_size > MAX_ARRAY_BYTES:
        raise ValueError(f"{file} is an array of more than {MAX_ARRAY_BYTES >> 20} MB: give JSON lines")
    text = file.read_bytes().removeprefix(codecs.BOM_UTF8).strip()
    try:
        found = _json(text)
    except ValueError as error:
        try:
            _json(text.partition(b"\n")[0])
        except ValueError:
            raise ValueError(f"{file} is an array that cannot be read: {error}: give JSON lines") from None
        return []  # lines, the first of them an array
    assert isinstance(found, list)
    if not found:
        raise ValueError(f"{file} holds no task: it is an empty array")
    return found


def _placed(item: Any, place: str) -> Placed | Imported:
    try:
        return Placed(_row(_object(item)), place)
    except ValueError as error:
        return refused("", place, error)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply for a task") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"it must be an object, got {quoted(found)}")
    return found


def _row(found: Mapping[str, Any]) -> Row:
    image = next((_text(found, key) for key in IMAGES if found.get(key)), None)
    missing = [
        key
        for key in ("repo", "patch", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS")
        if found.get(key) is None and not (key == _MAY_BE_NULL and key in found)
    ]
    repo = _text(found, "repo") if "repo" not in missing else ""
    breaks = repo.startswith(f"{SMITH}/") or (SMITH in (image or ""))
    if not breaks:
        missing += [key for key in ("base_commit", "test_patch") if not found.get(key)]
    if missing:
        raise ValueError(f"the columns {', '.join(missing)} are missing or empty")
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise ValueError(f"repo must be owner/name, got {quoted(repo)}")
    commit = _text(found, "base_commit") if found.get("base_commit") else None
    if commit is None and (suffix := _SUFFIX.search(repo)):
        commit = suffix[1]
    if commit is not None and not _COMMIT.fullmatch(commit):
        raise ValueError(f"base_commit must be 7 to 64 digits of 0-9 and a-f, got {quoted(commit)}")
    to_fix, to_keep = _names(found, "FAIL_TO_PASS"), _names(found, "PASS_TO_PASS")
    if not to_fix:
        raise ValueError("FAIL_TO_PASS is empty: no test decides whether the work is done")
    statement = _text(found, "problem_statement")
    if not statement.strip():
        raise ValueError("problem_statement is empty")
    name = (
        _text(found, "instance_id")
        if found.get("instance_id")
        else f"{repo.replace('/', '__')}-{(commit or '')[:12]}"
    )
    return Row(
        name=name,
        repo=repo,
        commit=commit,
        patch=_text(found, "patch"),
        tests=_text(found, "test_patch") if found.get("test_patch") else "",
        statement=statement,
        to_fix=to_fix,
        to_keep=to_keep,
        image=image,
        command=_command(found),
        breaks=breaks,
    )


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} must be text, got {quoted(value)}")
    if "\0" in value:
        raise ValueError(f"{key} holds a NUL character")
    return value


def _names(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of names, or a JSON text of one; null and an empty text are no names."""
    value = found[key]
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(
                f"{key} must be a list of test names, or JSON of one, got {quoted(value)}"
            ) from None
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
        raise ValueError(f"{key} must be a list of test names, or JSON of one, got {quoted(value)}")
    return tuple(dict.fromkeys(value))


def _command(found: Mapping[str, Any]) -> str | None:
    """The test command that some sets carry: `test_cmd`, `test_cmds`, or the one in `install_config`."""
    config = found.get("install_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            raise ValueError(f"install_config must be an object, got {quoted(config)}") from None
    tables = [found, config] if isinstance(config, dict) else [found]
    for key in COMMANDS:
        for table in tables:
            if value := table.get(key):
                lines = value if isinstance(value, list) else [value]
                if not all(isinstance(each, str) and "\0" not in each for each in lines):
                    raise ValueError(f"{key} must be a command or a list of them, got {quoted(value)}")
                return "\n".join(lines)
    return None
