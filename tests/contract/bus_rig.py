"""What the tests of the bus share."""

import anyio

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus


async def first_streams(bus: Bus) -> None:
    """Create the streams, and wait until the callbacks were told, so that later tellings mean later events."""
    told: set[str] = set()
    all_told = anyio.Event()

    async def on_new(stream: str) -> None:
        told.add(stream)
        if len(told) == len(subjects.STREAMS):
            all_told.set()

    bus.on_stream_new(on_new)
    assert sorted(await bus.ensure_streams()) == sorted(stream.name for stream in subjects.STREAMS)
    with anyio.fail_after(10):
        await all_told.wait()
