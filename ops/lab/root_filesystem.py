"""A small root file system made from this machine's own programs: what the conformance suite needs (sh, coreutils, python3), in a second or two."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

PROGRAMS: Final = (
    *("sh", "bash", "dash", "env", "python3", "grep", "sed", "find", "ps"),
    *(
        "cat",
        "chmod",
        "cp",
        "cut",
        "date",
        "dd",
        "echo",
        "false",
        "head",
        "id",
        "ln",
        "ls",
        "mkdir",
        "mkfifo",
        "mv",
        "nohup",
        "printf",
        "pwd",
    ),
    *(
        "readlink",
        "rm",
        "rmdir",
        "seq",
        "setsid",
        "sleep",
        "sort",
        "stat",
        "stty",
        "tail",
        "tee",
        "test",
        "timeout",
        "touch",
        "tr",
        "true",
    ),
    *(
        "truncate",
        "uname",
        "unshare",
        "wc",
        "whoami",
        "yes",
        "kill",
        "nproc",
        "mknod",
        "chown",
        "df",
        "du",
        "sync",
    ),
)
_LIBRARY: Final = re.compile(r"(/\S+) \(0x[0-9a-f]+\)")
_NOT_NEEDED: Final = (
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "__pycache__",
    "turtledemo",
    "tkinter",
    "config-3*",
    "dist-packages",
    "pydoc_data",
)


def make_root(root: Path, *, python: bool = True) -> Path:
    """Write the root file system to `root`, which must not exist; without `python` in a tenth of the time."""
    for name in ("usr/bin", "etc", "var/tmp", "root", "tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        target = os.readlink(f"/{name}") if Path(f"/{name}").is_symlink() else f"usr/{name}"
        (root / name).symlink_to(target)
        (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
    names = PROGRAMS if python else tuple(name for name in PROGRAMS if name != "python3")
    found = [Path(where) for name in names if (where := shutil.which(name, path="/usr/bin:/bin"))]
    for path in found:
        real = path.resolve()
        _place(root, real)
        if not (root / "usr/bin" / path.name).exists():
            (root / "usr/bin" / path.name).symlink_to(os.path.relpath(real, "/usr/bin"))
    extensions: tuple[Path, ...] = ()
    if python:
        library = _library()
        ignored = shutil.ignore_patterns(*_NOT_NEEDED)
        shutil.copytree(
            library, root / library.relative_to("/"), ignore=ignored, symlinks=True, dirs_exist_ok=True
        )
        extensions = tuple(library.glob("lib-dynload/*.so"))
    for needed in _needed((*(path.resolve() for path in found), *extensions)):
        _place(root, needed)
    return root


@cache
def _library() -> Path:
    code = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    result = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, check=True)
    return Path(result.stdout.strip())


def _needed(files: tuple[Path, ...]) -> set[Path]:
    result = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True)
    return {Path(name) for name in _LIBRARY.findall(result.stdout)}


def _place(root: Path, path: Path) -> None:
    """Copy a file to the same place below `root`; `/lib` and the like lead there as they do here."""
    target = root / Path(os.path.realpath(path.parent)).relative_to("/") / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path.resolve(), target)
