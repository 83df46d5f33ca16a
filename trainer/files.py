"""The files of a checkpoint, each content written once: a file with the same content as in the parent version becomes a hard link to it.

A link is another name of the same bytes, so deleting either version leaves the other whole. A checkpoint's files must never change
in place. If no link can be made (another filesystem, or one without links) or the older file is damaged, the bytes are written.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from orchestrator.runtime.failpoints import boundary_sync

SHARD_BYTES = 512 * 2**20
"""One shard is serialised in memory and is the unit of linking; a model of 16 GB has 32 shards."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file's entry in the manifest: its hex sha256 and its size."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The cost of writing a checkpoint. `seconds`: wall time until it was durable and verified."""

    written_files: int
    written_bytes: int
    linked_files: int
    linked_bytes: int
    seconds: float

    def json(self) -> dict[str, Any]:
        """The form for `train_steps.metrics` and the log."""
        return {**asdict(self), "seconds": round(self.seconds, 6)}


class CheckpointFiles:
    """Writes files into the empty `directory`; `known` are the files of an older checkpoint, by path. Raises OSError."""

    def __init__(self, directory: Path, known: Mapping[Path, FileEntry]) -> None:
        self.directory = directory
        self._known = {entry: path for path, entry in known.items()}
        self.written: dict[str, FileEntry] = {}
        self.linked: dict[str, FileEntry] = {}

    @property
    def entries(self) -> dict[str, FileEntry]:
        """Every file by its name, in the order of the names."""
        return dict(sorted({**self.written, **self.linked}.items()))

    def summary(self, seconds: float) -> Written:
        """The totals written and linked so far."""
        new, old = self.written.values(), self.linked.values()
        return Written(
            written_files=len(new),
            written_bytes=sum(entry.bytes for entry in new),
            linked_files=len(old),
            linked_bytes=sum(entry.bytes for entry in old),
            seconds=seconds,
        )

    def add(self, name: str, data: bytes) -> None:
        """Make the file `name`, a path below the directory, with this content."""
        path, entry = self.directory / name, FileEntry(hashlib.sha256(data).hexdigest(), len(data))
        path.parent.mkdir(exist_ok=True)
        older = self._known.get(entry)
        if older is not None and _linked(older, path, entry.sha256):
            self.linked[name] = entry
            return
        with path.open("xb") as file:  # never write into an existing file: it may belong to an older version
            file.write(data)
        self.written[name] = entry

    def adopt(self, name: str, entry: FileEntry) -> None:
        """Record the file `name`, which a rank has written here."""
        self.written[name] = entry

    def add_tensors(self, stem: str, shards: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, str]:
        """Make STEM.safetensors, or STEM-00001-of-0000N.safetensors for N > 1 shards. Returns the file name of each tensor."""
        parts = list(shards)
        names: dict[str, str] = {}
        for number, tensors in enumerate(parts, 1):
            suffix = f"-{number:05d}-of-{len(parts):05d}" if len(parts) > 1 else ""
            name = f"{stem}{suffix}.safetensors"
            contiguous = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
            self.add(name, save(contiguous, metadata={"format": "pt"}))
            names |= dict.fromkeys(tensors, Path(name).name)
        return names


def split(tensors: Mapping[str, torch.Tensor], limit: int) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors in order, in parts of at most `limit` bytes; a larger tensor is its own part. At least one part."""
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if part and size + tensor.nbytes > limit:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    yield part


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _linked(older: Path, path: Path, sha256: str) -> bool:
    """Link `path` to `older`. False if `older` is damaged, missing, or cannot be linked from here."""
    try:
        if sha256_of(older) != sha256:
            return False
        boundary_sync("checkpoint.link", lambda: os.link(older, path))
    except OSError:
        path.unlink(missing_ok=True)
        return False
    return True
