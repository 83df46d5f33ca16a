"""A bundle: the files, symbolic links and directories of a task, by path relative to its root.

Content lies in memory (`File`) or on this machine's disk (`StoredFile`), so a large bundle is never held in memory as a whole. Errors are
ValueError, one sentence each.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.quote import quoted
from orchestrator.settings.tasks import TasksSection
from sandboxes.base import AnyFile, File, StoredFile
from sandboxes.paths import parents_of_relative

MAX_PATH_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 255
DIRECTORY_MODE: Final = 0o755
_PROGRAMS: Final = (b"#!", b"\x7fELF")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """How large a task may be: `bytes` in all, `file_bytes` of one file, `entries` (files, links and directories)."""

    bytes: int = 256 << 20
    file_bytes: int = 64 << 20
    entries: int = 20_000

    @classmethod
    def of(cls, section: TasksSection) -> "BundleLimits":
        """The limits of a configuration."""
        return cls(
            bytes=section.max_mb << 20, file_bytes=section.max_file_mb << 20, entries=section.max_entries
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """`links`: path → target. `directories`: path → permission bits of the directories that must be made explicitly: empty ones, and those with other
    bits than 755."""

    files: Mapping[str, AnyFile]
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, bytes | AnyFile]) -> "Bundle":
        """A bundle of files. Those given as bytes have the bits of `mode_of`. ArgumentError for values of other types."""
        if not isinstance(files, Mapping):
            raise ArgumentError("files", f"must be a mapping of path to bytes, not {quoted(files)}")
        for path, body in files.items():
            if not isinstance(path, str):
                raise ArgumentError("files", f"has the path {quoted(path)}: a path is a string")
            if not is_content(body):
                raise ArgumentError("files", f"must have bytes at {quoted(path)}, not {quoted(body)}")
        return cls(files={path: with_mode(body) for path, body in files.items()})

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def paths(self) -> Iterator[str]:
        """Every path with an entry of its own."""
        yield from self.files
        yield from self.links
        yield from self.directories

    def only(self, wanted: Callable[[str], bool]) -> "Bundle":
        """The entries whose paths are wanted."""
        return Bundle(
            files={path: file for path, file in self.files.items() if wanted(path)},
            links={path: target for path, target in self.links.items() if wanted(path)},
            directories={path: mode for path, mode in self.directories.items() if wanted(path)},
        )

    def below(self, folder: str) -> "Bundle":
        """The entries below `folder` (ending in a slash), by path relative to it."""
        cut = len(folder)
        return Bundle(
            files={path[cut:]: file for path, file in self.files.items() if path.startswith(folder)},
            links={path[cut:]: target for path, target in self.links.items() if path.startswith(folder)},
            directories={
                path[cut:]: mode for path, mode in self.directories.items() if path.startswith(folder)
            },
        )

    def over(self, other: "Bundle") -> "Bundle":
        """`other` with these entries laid over it."""
        own = {*self.files, *self.links}
        return Bundle(
            files={path: file for path, file in other.files.items() if path not in self.links}
            | dict(self.files),
            links={path: target for path, target in other.links.items() if path not in self.files}
            | dict(self.links),
            directories={path: mode for path, mode in other.directories.items() if path not in own}
            | dict(self.directories),
        )

    def below_root(self, root: str) -> "Bundle":
        """The same entries with `root`, without a slash at its end, before every path."""
        return Bundle(
            files={f"{root}/{path}": file for path, file in self.files.items()},
            links={f"{root}/{path}": target for path, target in self.links.items()},
            directories={f"{root}/{path}": mode for path, mode in self.directories.items()},
        )

    def check(self, limits: BundleLimits | None = None) -> None:
        """Refuse paths that leave the bundle or collide, links that lead out of it, and more than `limits`."""
        bound = limits or BundleLimits()
        count = len(self.files) + len(self.links) + len(self.directories)
        if count > bound.entries:
            raise ValueError(
                f"it has {count:,} files, links and directories, and a task has at most {bound.entries:,}"
            )
        for path in self.paths:
            check_path(path)
        no_directory = {**self.files, **self.links}
        for path in self.paths:
            for folder in parents_of_relative(path):
                if folder in no_directory:
                    raise ValueError(f"{folder}: a task cannot have both this file and {path}")
        twice = next((path for path in self.links if path in self.files), None) or next(
            (path for path in self.directories if path in no_directory), None
        )
        if twice is not None:
            raise ValueError(f"{twice} comes twice: as a file, a link or a directory")
        for path, target in self.links.items():
            _check_link(path, target)
        for path, file in self.files.items():
            check_file_size(path, file.size, bound)
        if (size := self.size) > bound.bytes:
            raise ValueError(f"it has {_megabytes(size)}, and a task has at most {bound.bytes >> 20} MB")


EMPTY: Final = Bundle(files={})


def mode_of(body: bytes) -> int:
    """Permission bits of a file that is given without them: files that start like a program are executable."""
    return 0o755 if body.startswith(_PROGRAMS) else 0o644


def usual(file: AnyFile) -> bool:
    """Whether a file has the permission bits that `mode_of` gives it."""
    with file.open() as stream:
        return file.mode == mode_of(stream.read(4))


def is_content(body: object) -> bool:
    """Whether it is bytes, or a file of them."""
    return isinstance(body.data if isinstance(body, File) else body, bytes | StoredFile)


def with_mode(body: bytes | AnyFile) -> AnyFile:
    """A file of `body`, with the bits of `mode_of` if it has none."""
    return File(body, mode_of(body)) if isinstance(body, bytes) else body


@lru_cache(maxsize=1 << 15)  # tasks of one repository have the same paths
def check_path(path: str) -> None:
    """Refuse a path that is not relative, normal, printable and short: it must not leave its target folder, and must fit."""
    if not isinstance(path, str):
        raise ValueError(f"{quoted(path)} is not a path: write a string")
    parts = path.split("/")
    if not path or path.startswith("/") or _UNSAFE.search(path) or any(p in ("", ".", "..") for p in parts):
        raise ValueError(f"{quoted(path)} is not a plain relative path")
    if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ValueError(
            f"{quoted(path)} is too long: a path has at most {MAX_PATH_BYTES} bytes, and each name in it {MAX_NAME_BYTES}"
        )


def check_file_size(path: str, size: int, limits: BundleLimits) -> None:
    """Refuse a file of more bytes than one of a task may have, by ValueError."""
    if size > limits.file_bytes:
        raise ValueError(
            f"{path} has {_megabytes(size)}, and a file of a task has at most {limits.file_bytes >> 20} MB"
        )


def top_of(path: str) -> str:
    """The folder of a task that a link at `path` may not leave, as `tests`, or `steps/one/workdir`."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[0] == "steps" and len(parts) > 3 else 1])


def _check_link(path: str, target: str) -> None:
    if not target or "\0" in target or len(target.encode(errors="replace")) > MAX_PATH_BYTES:
        raise ValueError(f"{path} is a link to {quoted(target)}, which is not a path")
    if target.startswith("/"):
        return  # where it may lead is decided where it is placed
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    top = top_of(path)
    if reached != top and not reached.startswith(f"{top}/"):
        raise ValueError(
            f"{path} is a link to {quoted(target)}, which leads out of {top}/: put the file there instead"
        )


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB"
