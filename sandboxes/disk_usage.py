"""How full a sandbox is. It is measured while its programs run and at their ends, less often for large trees."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.to_thread

from sandboxes import nameless, tree
from sandboxes.base import Limits

POLL_INTERVAL_S = 0.25
"""Seconds between two measurements of a program's use. Shorter programs are measured at their end."""
SHARE = 9
"""A measurement of one second is followed by this many seconds without one: at most a tenth of the time is spent on measuring."""
_UNMEASURED_S = 0.1


class DiskUsage:
    """The disk use of all programs of one sandbox together, against its limits: what lies below `files`, and the files without a name that the
    processes of `living` hold."""

    def __init__(self, files: Path, limits: Limits, living: Callable[[], Sequence[int]]) -> None:
        self._files = files
        self._limits = limits
        self._living = living
        self._took_s = 0.0
        self._unmeasured_s = 0.0
        self._in_memory = 0
        self._measured_at = -float("inf")

    async def full(self) -> bool:
        """Measure. Whether it holds more than the limits allow."""
        return (await self._measure()).over

    async def at_limit(self) -> bool:
        """Measure. Whether it holds as many bytes as the limits allow, or more than they allow."""
        return (await self._measure()).at_limit

    async def _measure(self) -> tree.TreeUsage:
        started_at = time.monotonic()
        used = await anyio.to_thread.run_sync(self._used, self._living())
        self._measured_at = time.monotonic()
        self._took_s, self._unmeasured_s = self._measured_at - started_at, 0.0
        self._measured_at = -float("inf") if used.over else self._measured_at
        return used

    def _used(self, pids: Sequence[int]) -> tree.TreeUsage:
        # First: a file that loses its name in the meantime counts once.
        held = nameless.Held(pids, (self._files,))
        size, files = held.on_disk()
        self._in_memory = held.in_memory()
        limits = self._limits
        used = tree.TreeUsage(
            most_bytes=limits.disk_mb << 20, most_files=limits.disk_files, bytes=size, files=files
        )
        return used.add(self._files)

    async def full_if_due(self) -> bool:
        """The same for a repeated caller: of several programs that run at the same time, one measures for all."""
        if time.monotonic() - self._measured_at < max(POLL_INTERVAL_S / 2, SHARE * self._took_s):
            return False
        return await self.full()

    def in_memory(self) -> int:
        """Bytes that programs held in memory files at the last measurement, not only mapped. 0 if it is too long ago."""
        return self._in_memory if time.monotonic() - self._measured_at < POLL_INTERVAL_S / 2 else 0

    async def full_after(self, wall_s: float) -> bool:
        """The same at the end of a program that ran for `wall_s`. Programs shorter than a measurement are measured together. Of any
        number of them, at most a tenth of a second is unmeasured."""
        self._unmeasured_s += wall_s
        return self._unmeasured_s > min(_UNMEASURED_S, SHARE * self._took_s) and await self.full()
