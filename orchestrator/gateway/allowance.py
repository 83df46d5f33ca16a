"""The tokens that a session may sample in all, shared by its calls that run at once."""

from collections.abc import Callable

import anyio


class Allowance:
    """Each call holds the most that it may sample until its step is recorded: together they cannot exceed `total`. None: no limit.

    A call that wants more than the others leave waits for them, rather than being cut off short for what they may not even use.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._held = 0
        self._returned = anyio.Event()  # set, and replaced, when a call has ended

    async def take(self, wanted: int, sampled: Callable[[], int]) -> int:
        """Tokens that a call may sample, at most `wanted`, to be given back once its step is on record; 0: all are used up."""
        if self._total is None:
            return wanted
        while self._held and self._total - sampled() - self._held < wanted:
            await self._returned.wait()
        most = max(0, min(wanted, self._total - sampled()))
        self._held += most
        return most

    def give_back(self, most: int) -> None:
        """The call that took so many has ended."""
        if self._total is None:
            return
        self._held -= most
        self._returned.set()
        self._returned = anyio.Event()
