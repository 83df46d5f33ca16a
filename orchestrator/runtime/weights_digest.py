"""The digest of weights: which tensors a server holds, in any number of files.

It is the sha256 of one line per tensor, sorted by name: name, dtype, shape, sha256 of the tensor's bytes. Shards and their order do not
change it, so weights that were sent from process to process have the digest of the checkpoint's files.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

HEADER_BYTES = 100 * 2**20  # the limit of safetensors itself
_CHUNK_BYTES = 2**20


class _Tensor(msgspec.Struct):
    """One entry of a safetensors header; `data_offsets` count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def tensor_lines(file: Path) -> tuple[str, ...]:
    """The lines of the digest for one safetensors file, in the header's order. Raises ValueError for a file that is not one, and OSError."""
    with file.open("rb") as opened:
        size, whole = int.from_bytes(opened.read(8), "little"), file.stat().st_size
        if not 2 <= size <= min(HEADER_BYTES, whole - 8):
            raise ValueError(f"{file} is not a safetensors file: its header cannot have {size} bytes")
        try:
            header = msgspec.json.decode(opened.read(size), type=dict[str, msgspec.Raw])
            tensors = {
                name: msgspec.json.decode(raw, type=_Tensor)
                for name, raw in header.items()
                if name != "__metadata__"
            }
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{file} is not a safetensors file: {error}") from error
        lines = []
        for name, tensor in tensors.items():
            begin, end = tensor.data_offsets
            if not 0 <= begin <= end <= whole - 8 - size:
                raise ValueError(f"{file} does not hold the bytes of {name}")
            opened.seek(8 + size + begin)
            shape = "x".join(map(str, tensor.shape))
            lines.append(f"{name}\0{tensor.dtype}\0{shape}\0{_sha256(opened, end - begin)}")
        return tuple(lines)


def digest_of_lines(lines: Iterable[str]) -> str:
    """The digest, hex, of the tensors of all files."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def weights_digest(files: Iterable[Path]) -> str:
    """The digest, hex, of the tensors in `files`. Raises ValueError for a file that is not safetensors, and OSError."""
    return digest_of_lines(line for file in files for line in tensor_lines(file))


def _sha256(opened: BinaryIO, length: int) -> str:
    found = hashlib.sha256()
    while length and (chunk := opened.read(min(length, _CHUNK_BYTES))):
        found.update(chunk)
        length -= len(chunk)
    return found.hexdigest()
