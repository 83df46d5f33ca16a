"""A list of artifacts in blobs: one that is longer than the run allows is refused before it is decoded, others are decoded in a thread."""

import threading
from collections.abc import Sequence

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import ArtifactFile, RolloutFinished
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.states import FailureClass
from orchestrator.pool import blobs
from orchestrator.roles import listed_artifacts
from orchestrator.roles.listed_artifacts import with_listed
from orchestrator.tasks.artifact_blobs import read_listing
from orchestrator.tasks.message import PART_BYTES
from sandboxes.base import ArtifactLimits

pytestmark = [pytest.mark.anyio, pytest.mark.services]

LIMITS = ArtifactLimits(files=2_000)
QUOTES = '"' * 20
LONGEST = [ArtifactFile(path=f"{QUOTES}{number:04000}", body="x" * 1368) for number in range(2_000)]


async def listed(engine: AsyncEngine, pieces: Sequence[bytes]) -> RolloutFinished:
    event = RolloutFinished(
        run="r",
        rollout=1,
        attempt=1,
        epoch=1,
        failure_class=FailureClass.COMPLETED,
        steps=0,
        last_idx=-1,
        listing=[sha256(piece).hex() for piece in pieces],
    )
    async with engine.begin() as connection:
        await blobs.store(connection, {sha256(piece).hex(): piece for piece in pieces})
        return await with_listed(connection, event, LIMITS)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"[" + b'{"path":"a","body":null},' * 35_000, *[b'{"path":"a","body":null},' * 35_000] * 5],
        [b'[{"path":"a","body":null,"parts":[' + b'"",' * 299_000, *[b'"",' * 299_000] * 5],
        [b'[{"path":"a","body":"', *[b"x" * 899_000] * 120],
    ],
    ids=["entries", "names of blobs", "bytes"],
)
async def test_a_list_that_is_too_long_is_refused_before_it_is_decoded(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    def never(_: bytes) -> list[ArtifactFile]:
        raise AssertionError("it is decoded")

    monkeypatch.setattr(listed_artifacts, "read_listing", never)
    with pytest.raises(MessageError, match=r"the list of its artifacts is longer than that of 2,000 files"):
        await listed(engine, pieces)


async def test_the_longest_list_of_a_run_is_decoded_off_the_event_loop(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def reading(body: bytes) -> list[ArtifactFile]:
        threads.append(threading.get_ident())
        return read_listing(body)

    monkeypatch.setattr(listed_artifacts, "read_listing", reading)
    body = msgspec.json.encode(LONGEST)
    pieces = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
    event = await listed(engine, pieces)
    assert event.artifacts == LONGEST and event.listing == []
    assert len(threads) == 1 and threads[0] != threading.get_ident()
