"""Shared by the tests of the bus."""

import anyio

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus
from orchestrator.bus.subjects import Consumer


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


def letters_of(stream: str) -> Consumer:
    """The dead letters of one stream: stored ones first, then new ones."""
    return Consumer(stream="DEAD", durable=None, filter=subjects.dead(stream), max_ack_pending=1024)
