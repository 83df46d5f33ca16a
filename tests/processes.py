"""Processes that a test starts and reads, closed before its event loop ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel
from anyio.abc import Process


@asynccontextmanager
async def closing(process: Process) -> AsyncIterator[Process]:
    """`process`, killed at the end if it still runs.

    Its pipes are closed as well: an event loop may end before it learns that, and whichever test runs then would be blamed by a ResourceWarning.
    """
    try:
        async with process:
            yield process
    finally:
        transport: Any = process._process._transport  # type: ignore[attr-defined]
        transport.close()
        for _ in range(2):  # the loop closes the pipes themselves in its next turn
            await anyio.lowlevel.cancel_shielded_checkpoint()
