"""The files of a task that Penstock or a shell reads, as Windows and its editors save them.

Settings, instructions, Dockerfiles and the scripts that bash runs lose a byte order mark and CRLF; another encoding is refused by name. All other
files keep their bytes: they may be what the task is about.
"""

from collections.abc import Mapping
from typing import Final

from sandboxes.base import AnyFile, File
from sandboxes.text_files import is_script, script_of, text_of

_TEXTS: Final = frozenset(
    (
        "task.toml",
        "instruction.md",
        "environment/Dockerfile",
        "environment/docker-compose.yaml",
        "tests/Dockerfile",
        "record/script.json",
    )
)
_SCRIPTS: Final = frozenset(("tests/test.sh", "solution/solve.sh"))
_STEPS: Final = "steps/"
_LARGEST: Final = 1 << 20


def as_plain_text(files: Mapping[str, AnyFile]) -> dict[str, AnyFile]:
    """The files of a task with these texts and scripts in their plain form. ValueError names the file and its encoding."""
    return {path: _plain(path, file) for path, file in files.items()}


def startable(files: Mapping[str, AnyFile]) -> dict[str, AnyFile]:
    """Files for a sandbox in which programs with a `#!` line can be started: the kernel finds no interpreter after a mark or before a CR."""
    return {path: _script(path, file) if _starts(file) else file for path, file in files.items()}


def _plain(path: str, file: AnyFile) -> AnyFile:
    inside = path.split("/", 2)[-1] if path.startswith(_STEPS) else path
    if inside in _SCRIPTS:
        return _script(path, file)
    if inside not in _TEXTS:
        return file
    body = text_of(data := file.data, path).encode()
    return file if body == data else File(body, file.mode)


def _script(path: str, file: AnyFile) -> AnyFile:
    body = script_of(data := file.data, path)
    return file if body == data else File(body, file.mode | (0o111 if is_script(body) else 0))


def _starts(file: AnyFile) -> bool:
    if file.size > _LARGEST:
        return False
    with file.open() as stream:
        begin = stream.readline(256)
    return is_script(begin) and (begin.endswith(b"\r\n") or not begin.startswith(b"#!"))
