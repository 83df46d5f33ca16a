"""How full a sandbox is: looked at while its programs run and at their ends, as rarely as large trees ask for."""

from __future__ import annotations

import time
from pathlib import Path

import anyio.to_thread

from sandboxes import tree
from sandboxes.base import Limits

SHARE = 9
"""A look that took a second is followed by so many without one: never more than a tenth of the time is spent on looking."""
_UNSEEN_S = 0.1


class Looks:
    """What all programs of one sandbox together wrote below `files`, against its limits."""

    def __init__(self, files: Path, limits: Limits) -> None:
        self._files = files
        self._limits = limits
        self._took_s = 0.0
        self._unseen_s = 0.0

    async def full(self) -> bool:
        """Look. Whether it holds more than it may."""
        began = time.monotonic()
        used = await anyio.to_thread.run_sync(tree.usage, self._files)
        self._took_s, self._unseen_s = time.monotonic() - began, 0.0
        limits = self._limits
        return used.bytes > limits.disk_mb << 20 or used.files > limits.disk_files or used.too_deep

    async def full_after(self, wall_s: float) -> bool:
        """The same at the end of a program that ran for `wall_s`. Programs so short that looking takes longer are looked at together: however
        many there are, a tenth of a second of them goes unseen at most."""
        self._unseen_s += wall_s
        return self._unseen_s > min(_UNSEEN_S, SHARE * self._took_s) and await self.full()
