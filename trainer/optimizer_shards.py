"""Moments of the optimizer as torch's distributed checkpoints (DCP): each rank writes its part, any number of ranks can read them.

    <version>/trainer/shard-0000R-model-00001-of-00001.safetensors      one file per rank R = 1…N

Safetensors headers give the position of each piece in its tensor, so nothing on the disk is pickled. (While they write, ranks exchange
their plans in torch's own way, which is pickle between processes of one trainer.) The reader also accepts the files of a single
process: those have tensors of one piece. Parameters are not stored a second time: the weights of the checkpoint hold them exactly.
"""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from orchestrator.runtime.failpoints import boundary_sync
from trainer.files import FileEntry, sha256_of

PREFIX = "shard-"


def write_shards(place: Path, tensors: Mapping[str, Tensor], rank: int) -> dict[str, FileEntry]:
    """Write this rank's parts of `tensors` into the directory `place`, durably; returns its files by name. A collective.

    Raises OSError: on every rank if one of them could not write; on one rank alone if its files could not be made durable.
    """
    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(place), save_distributed=True))
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if not isinstance(cause, OSError | SafetensorError):
            raise RuntimeError(f"the shard of rank {rank} cannot be written: {cause!r}") from error
        raise OSError(f"rank {rank} could not write its shard: {cause}") from error
    written = {}
    for file in place.glob(f"{PREFIX}{rank + 1:05d}-*.safetensors"):
        _order_header(file)
        with file.open("rb") as opened:
            boundary_sync("checkpoint.sync", lambda: os.fsync(opened.fileno()))
        written[file.name] = FileEntry(sha256_of(file), file.stat().st_size)
    return written


def stored(place: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the whole tensor of every moment in `place`, by name, "PARAMETER/KEY". An adapter's tensors are not moments."""
    found = HuggingFaceStorageReader(str(place)).read_metadata().state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in found.items()
        if isinstance(entry, TensorStorageMetadata) and "/" in name
    }


def read_shards(place: Path, into: Mapping[str, Tensor]) -> None:
    """Fill tensors by name, spread or whole, in place. Each rank reads its own parts; this is not a collective."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(dict(into), storage_reader=HuggingFaceStorageReader(str(place)), no_dist=True)


def read_whole(place: Path) -> dict[str, Tensor]:
    """Every moment in `place`, whole."""
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in stored(place).items()}
    read_shards(place, tensors)
    return tensors


def _order_header(file: Path) -> None:
    """Sort the header's keys in the file: the library writes them in varying order, and equal content must be equal bytes."""
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        ordered = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
        raw = json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(raw) <= size, "the same content in the same notation"
        opened.seek(8)
        opened.write(raw.ljust(size))
