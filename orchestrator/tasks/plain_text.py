"""The files of a task that Penstock or a shell reads, as Windows and its editors save them.

Settings, instructions, Dockerfiles and the scripts that bash runs lose a byte order mark and CRLF; another encoding is refused by name. All other
files keep their bytes: they may be what the task is about.
"""

import re
from collections.abc import Mapping
from typing import Final

from sandboxes.base import AnyFile, File
from sandboxes.shell_lines import for_a_shell
from sandboxes.text_files import is_script, script_of, text_of, toml_text

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
_MAX_BYTES: Final = 1 << 20
_SUFFIX: Final = ".sh"
_RUN: Final = re.compile(
    rb"""(?: ^ | [\s;&|(`"'] ) (?: bash | dash | sh | source | \. ) [ \t]+ (?: -\w+ [ \t]+ )*
    ["']? (?: \$\([^\n)]{0,200}\) | [^\s;&|()] ){0,400} (?<![\w.-]) ([\w.-]+\.sh) (?![\w.-])""",
    re.VERBOSE | re.MULTILINE,
)
"""A shell's command that runs a `.sh` file, whose name is the group."""


def as_plain_text(files: Mapping[str, AnyFile]) -> dict[str, AnyFile]:
    """The files of a task with these texts and scripts in their plain form. ValueError names the file and its encoding."""
    return {path: _plain(path, file) for path, file in files.items()}


def startable(files: Mapping[str, AnyFile]) -> dict[str, AnyFile]:
    """The tests, for a sandbox in which their scripts can be started: the kernel finds no interpreter after a mark or before a CR.

    Those are programs with a `#!` line, and the `.sh` files without one that a shell script of the tests runs. Another `.sh` file may be data.
    """
    scripts = {path for path, file in files.items() if _is_program(file)}
    named = {
        path for path, file in files.items() if path.endswith(_SUFFIX) and file.size <= _MAX_BYTES
    } - scripts
    run: set[bytes] = set()
    for path in named | scripts:
        if path in named or for_a_shell(files[path].data):
            run.update(_RUN.findall(files[path].data))
    scripts |= {path for path in named if path.rpartition("/")[2].encode() in run}
    return {path: _test_script(path, file) if path in scripts else file for path, file in files.items()}


def _plain(path: str, file: AnyFile) -> AnyFile:
    inside = path.split("/", 2)[-1] if path.startswith(_STEPS) else path
    if inside in _SCRIPTS:
        return _script(path, file)
    if inside not in _TEXTS:
        return file
    read = toml_text if inside == "task.toml" else text_of
    body = read(data := file.data, path).encode()
    return file if body == data else File(body, file.mode)


def _script(path: str, file: AnyFile) -> AnyFile:
    body = script_of(data := file.data, path, by_shell=path.endswith(_SUFFIX))
    return file if body == data else File(body, file.mode | (0o111 if is_script(body) else 0))


def _test_script(path: str, file: AnyFile) -> AnyFile:
    try:
        return _script(path, file)
    except ValueError:  # it may be data of the tests
        return file


def _is_program(file: AnyFile) -> bool:
    if file.size > _MAX_BYTES:
        return False
    with file.open() as stream:
        return is_script(stream.readline(256))
