"""Which directories of an image programs may write besides its work directory: those that hold data.

What an agent changes there reaches the tests. So a directory from which the image serves programs is never among them. These name such directories:

- PATH and other variables of the image, except those named like DATA_DIR
- the dynamic linker
- links of the system
- first lines of scripts
- path files of Python

A directory that has such a part, or the work directory, below it is divided: the directories next to that part are places, it is not.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from sandboxes.base import DEFAULT_ENV, HOME, PLACED, WORK, WRITABLE
from sandboxes.elsewhere import DEFAULT, place_of
from sandboxes.machine import pass_on
from sandboxes.paths import is_within

_OWN = (WORK, HOME, *PLACED, "/tmp", "/logs", "/proc", "/dev", "/sys", "/run")
_SYSTEM = ("usr", "bin", "sbin", "etc", "opt", "lib", "lib32", "lib64", "libx32")
_LINKER = ("etc/ld.so.conf", "etc/ld.so.conf.d")
_PATH = re.compile(r"/[^\s:;,=\"'\0]+")
_OF_DATA = re.compile(
    r"(.+_)?((PG)?DATA(DIR)?|DATASETS?|CORPUS|INPUTS?|OUTPUTS?|RESULTS?|LOGS?|UPLOADS?|WORKSPACE)(_.+)?"
)
"""Names of variables that say where data lies. Every other path in a variable may be one from which programs are served."""
_SCRIPT, _CONFIGURATION = 256, 1 << 16  # bytes that are read of a file
_MAX_PATH = 4_096
_PATH_FILES = (".pth", ".egg-link")
_MAX_SIBLINGS = 64
"""Entries next to the parts that are not places, in one directory that is divided. With more it is not divided, since each is a mount of its own."""


def places(
    root: Path,
    work: str,
    env: Mapping[str, str],
    *,
    wanted: Sequence[str] = (),
    volumes: Sequence[str] = (),
    taken: Collection[str] = (),
) -> tuple[str, ...]:
    """The places of the image at `root`, none within another.

    `wanted`: files or directories that programs are to write, whose directories are made if the image lacks them; those that may not be places are
    left out. `volumes`: directories that the image declares as data (VOLUME), likewise. `taken`: absolute paths that are something else in this
    sandbox.
    """
    variables = tuple(sorted(env.items()))
    kept = {*_OWN, work, *taken, *served(root, variables)}
    found = [
        place
        for name in sorted(os.listdir(root))
        for top in _candidates(root, f"/{name}")
        for place in _divided(root, top, kept)
    ]
    for path in (*(_directory_of(root, each) for each in wanted), *volumes):
        if not place_of(path) or any(is_within(path, place) for place in found):
            continue
        new = _divided(root, path, kept) if _is_directory(root, path) else _new(root, path, kept)
        found = [place for place in found if not any(is_within(place, each) for each in new)] + list(new)
    return tuple(sorted(found))


def closed(root: Path, work: str, env: Mapping[str, str], volumes: Sequence[str]) -> tuple[str, ...]:
    """The volumes of the image at `root` that programs may not write, or not as a whole."""
    if not volumes:  # an image's directories need not be read
        return ()
    written = (*places(root, work, env, volumes=volumes), work, *WRITABLE)
    return tuple(each for each in volumes if not any(is_within(each, place) for place in written))


def _directory_of(root: Path, path: str) -> str:
    """The place to write for a file or directory at `path`."""
    above = posixpath.dirname(path)
    return path if _is_directory(root, path) or not place_of(above) else above


@lru_cache(maxsize=64)
def served(root: Path, variables: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """The paths from which the image at `root`, which does not change, serves programs: absolute, and possibly in a place. Reads the directories
    of its system once."""
    env = {**DEFAULT_ENV, **dict(variables)}
    known: set[str] = set()
    waiting = [
        *(path for name, value in variables if not _OF_DATA.fullmatch(name) for path in _PATH.findall(value)),
        *_of_linker(root),
        *(found for name in _SYSTEM for found in _named_below(root, f"/{name}")),
        *(found for path in env["PATH"].split(":") for found in _of_scripts(root, path)),
    ]
    while waiting:
        path = posixpath.normpath("/" + waiting.pop().lstrip("/"))
        for each in _with_prefix(path):
            if each not in known and place_of(each):
                known.add(each)
                waiting += [*_named_below(root, each), *_through_links(root, each)]
    return frozenset(known)


def _with_prefix(path: str) -> Iterator[str]:
    """A path, and the directory of an installation that it belongs to: `/srv/py` of `/srv/py/bin/python3`."""
    yield path
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part in ("bin", "sbin", "lib", "lib64") and at > 1:
            yield "/".join(parts[:at])


def _through_links(root: Path, path: str) -> Iterator[str]:
    """Where `path` leads, if a part of it is a link."""
    parts = path.split("/")
    for end in range(2, len(parts) + 1):
        part = "/".join(parts[:end])
        if os.path.islink(f"{root}{part}"):
            found = posixpath.join(posixpath.dirname(part), os.readlink(f"{root}{part}"), *parts[end:])
            if len(found) < _MAX_PATH:
                yield found
            return


def _candidates(root: Path, top: str) -> Iterator[str]:
    if not _is_directory(root, top):
        return
    if place_of(top):
        yield top
    elif top[1:] in DEFAULT:
        for name in sorted(os.listdir(f"{root}{top}")):
            if place_of(path := f"{top}/{name}") and _is_directory(root, path):
                yield path


def _divided(root: Path, path: str, kept: Collection[str]) -> tuple[str, ...]:
    """`path`, a directory of the image, or those in it that neither are, hold nor lie in what is `kept`."""
    if any(is_within(path, each) for each in kept):
        return ()
    if not any(is_within(each, path) for each in kept):
        return (path,)
    names = os.listdir(f"{root}{path}")
    if len(names) > _MAX_SIBLINGS:
        return ()
    inner = [f"{path}/{name}" for name in sorted(names)]
    return tuple(place for each in inner if _is_directory(root, each) for place in _divided(root, each, kept))


def _new(root: Path, path: str, kept: Collection[str]) -> tuple[str, ...]:
    """`path` if it can be made: it is not there, and what is above it are real directories."""
    if any(is_within(path, each) or is_within(each, path) for each in kept):
        return ()
    above = [path[:at] for at in range(1, len(path)) if path[at] == "/"]
    free = all(_is_directory(root, each) or not os.path.lexists(f"{root}{each}") for each in above)
    return (path,) if free and not os.path.lexists(f"{root}{path}") else ()


def _is_directory(root: Path, path: str) -> bool:
    """Whether every part of the path is a real directory."""
    parts = path[1:].split("/")
    try:
        return all(
            stat.S_ISDIR(os.lstat(f"{root}/{'/'.join(parts[:end])}").st_mode)
            for end in range(1, len(parts) + 1)
        )
    except OSError as error:
        pass_on(error)
        return False


def _of_linker(root: Path) -> Iterator[str]:
    for path in _LINKER:
        where = root / path
        files = sorted(where.iterdir()) if where.is_dir() and not where.is_symlink() else [where]
        for file in files:
            yield from _PATH.findall(_beginning(file, _CONFIGURATION))


def _named_below(root: Path, top: str) -> list[str]:
    """Where the links below a directory of the image lead, and what its path files of Python name."""
    found: list[str] = []
    waiting = [top] if _is_directory(root, top) else []
    while waiting:
        at = waiting.pop()
        with os.scandir(f"{root}{at}") as entries:
            for entry in entries:
                if entry.is_symlink():
                    found.append(posixpath.normpath(posixpath.join(at, os.readlink(entry.path))))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{at}/{entry.name}")
                elif entry.name.endswith(_PATH_FILES) or entry.name.startswith("__editable__"):
                    found += _PATH.findall(_beginning(Path(entry.path), _CONFIGURATION))
    return found


def _of_scripts(root: Path, path: str) -> Iterator[str]:
    """The interpreters of the scripts in a directory of PATH."""
    path = posixpath.normpath("/" + path.strip("/"))
    if not _is_directory(root, path):
        return
    for name in os.listdir(f"{root}{path}"):
        head = _beginning(Path(f"{root}{path}/{name}"), _SCRIPT)
        if head.startswith("#!"):
            # pip writes a long path into the second line, behind `exec`.
            yield from _PATH.findall("\n".join(head.splitlines()[:3]))


def _beginning(file: Path, most: int) -> str:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        pass_on(error)
        return ""
    with open(fd, "rb") as source:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return source.read(most).decode(errors="surrogateescape") if regular else ""
