"""Shared by the tests of the bus."""

import anyio

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus


async def first_streams(bus: Bus) -> None:
    """Create the streams, and wait until the callbacks ran, so that later calls mean later events."""
    notified: set[str] = set()
    all_notified = anyio.Event()

    async def on_new(stream: str) -> None:
        notified.add(stream)
        if len(notified) == len(subjects.STREAMS):
            all_notified.set()

    bus.on_stream_new(on_new)
    assert sorted(await bus.ensure_streams()) == sorted(stream.name for stream in subjects.STREAMS)
    with anyio.fail_after(60):
        await all_notified.wait()
