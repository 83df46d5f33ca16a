"""The total of tokens that a session may sample, shared by its concurrent calls."""

from collections.abc import Callable

import anyio


class Allowance:
    """Each call reserves its maximum of sampled tokens until its step is recorded, so together they cannot exceed `total`. None: no limit.

    A call that needs more than the others leave waits for them. It is not cut short for tokens that they may not even use.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._held = 0
        self._returned = anyio.Event()  # set, and replaced, when a call has ended

    async def take(self, wanted: int, sampled: Callable[[], int]) -> int:
        """Tokens that a call may sample, at most `wanted`. The caller gives them back once its step is on record. 0: all are used up."""
        if self._total is None:
            return wanted
        while self._held and self._total - sampled() - self._held < wanted:
            await self._returned.wait()
        reserved = max(0, min(wanted, self._total - sampled()))
        self._held += reserved
        return reserved

    def give_back(self, most: int) -> None:
        """Return the `most` tokens of a call that has ended."""
        if self._total is None:
            return
        self._held -= most
        self._returned.set()
        self._returned = anyio.Event()
