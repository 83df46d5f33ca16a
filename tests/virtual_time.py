"""Virtual time: an event loop whose time passes at once whenever every task waits for it.

A test of clocks is exact and quick on it, on a busy machine too: code takes no time, and only waits do. It is for code without threads, sockets
and processes: the loop does not wait for those while a task waits for a time.
"""

import asyncio
import selectors
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import pytest

BEGIN_S = 1000.0  # not 0, which code may take for no time


class _Jump(selectors.SelectSelector):
    """Lets the time pass for which the loop would wait."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        ready = super().select(0)
        if not ready:
            self.passed_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` begins at BEGIN_S."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return BEGIN_S + self._jump.passed_s


BACKEND: tuple[str, Mapping[str, Any]] = ("asyncio", {"loop_factory": VirtualLoop})
"""The value of the fixture `anyio_backend`."""


def show(patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """`time.monotonic` of these modules is the time of the loop."""
    for module in modules:
        patch.setattr(module, "time", SimpleNamespace(monotonic=anyio.current_time))


async def passes(seconds: float) -> None:
    """Let virtual time pass; other tasks work in it."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "real time does not pass at once"
    await anyio.sleep(seconds)  # noqa: TID251
