"""The process group of one trainer's ranks, and the few exchanges that are not gradients.

Everything here is a collective: every rank calls it in the same order. Otherwise all of them wait until the group's timeout
(`timeouts.rank_silence_s`) and then end. Nothing is pickled: the ranks exchange tensors, or msgspec's JSON as a tensor of bytes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The ranks of one trainer, from the view of this rank. Rank 0 leads: it alone uses the data pool."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """The default process group must exist, with `size` ranks and a backend for `device`."""
        self.rank, self.size, self.device = rank, size, device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def exchange(self, message: Any) -> list[Any]:
        """The message of each rank, by rank: JSON values, the same list on every rank."""
        return [msgspec.json.decode(part) for part in self.gathered(msgspec.json.encode(message))]

    def share(self, data: bytes) -> bytes:
        """Rank 0's `data`, on every rank; the others' `data` is ignored."""
        length = self._long(len(data))
        dist.broadcast(length, src=0)
        content = self._bytes(data if self.leads else b"", int(length))
        dist.broadcast(content, src=0)
        return content.cpu().numpy().tobytes()

    @contextmanager
    def agreeing(self, *kinds: type[Exception]) -> Iterator[None]:
        """An error of one of `kinds` that the body raises on any rank is raised on all ranks, as the first of `kinds` that it is; of several
        ranks' errors, the first rank's. A collective; the body must not contain one."""
        found: tuple[int, str] | None = None
        try:
            yield
        except kinds as raised:
            number = next(number for number, kind in enumerate(kinds) if isinstance(raised, kind))
            found = number, str(raised)
        for rank, error in enumerate(self.exchange(found)):
            if error is not None:
                number, text = error
                raise kinds[number](f"rank {rank}: {text}" if rank else text)

    def total(self, value: float) -> float:
        """The sum over ranks, in float64 and in one fixed order: every rank gets the same bits."""
        local = torch.tensor([value], dtype=torch.float64, device=self.device)
        parts = [torch.empty_like(local) for _ in range(self.size)]
        dist.all_gather(parts, local)
        return float(torch.cat(parts).cpu().sum())

    def gathered(self, data: bytes) -> list[bytes]:
        """The data of each rank, by rank; lengths may differ."""
        lengths = [self._long(0) for _ in range(self.size)]
        dist.all_gather(lengths, self._long(len(data)))
        sizes = [int(length) for length in lengths]
        parts = [self._bytes(b"", max(sizes)) for _ in sizes]
        dist.all_gather(parts, self._bytes(data, max(sizes)))
        return [part.cpu().numpy().tobytes()[:size] for part, size in zip(parts, sizes, strict=True)]

    def _long(self, value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int64, device=self.device)

    def _bytes(self, data: bytes, length: int) -> Tensor:
        """uint8[length], starting with `data`."""
        content = torch.zeros(length, dtype=torch.uint8)
        if data:
            content[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return content.to(self.device)


def lost(error: BaseException) -> bool:
    """Whether `error` is a collective's: another rank closed its connection, or did not join in time."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    signs: Sequence[str] = ("gloo", "nccl", "connection closed by peer", "connection reset", "broken pipe")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)
