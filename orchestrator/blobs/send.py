"""Publishing of blobs: a publisher asks which ones the data pool lacks, and sends those.

The question and its answer are core messages: `blobs_wanted.<id>` with a JSON list of hex names, `blobs_missing.<id>` with those that are missing.
Without an answer everything is sent: a known blob is a no-op.
"""

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import anyio

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, BusError, Outgoing, StreamFull
from orchestrator.bus.message_guard import apart
from orchestrator.runtime.log import get
from orchestrator.tasks.message import Part

log = get(__name__)

SCHEMA: Final = "Blob/1"
QUESTION_NAMES: Final = 4000
"""Names in one question: 270 KB."""
ANSWER_S: Final = 5.0
FULL_WAIT_S: Final = 0.2
_WINDOW: Final = 16  # blobs read into memory and sent at a time: 14 MB

Progress = Callable[[int, int], object]


async def missing_blobs(bus: Bus, shas: Collection[str]) -> set[str]:
    """Those of the blobs that the data pool lacks. All of them if no orchestrator answers."""
    absent: set[str] = set()
    ordered = sorted(shas)
    for start in range(0, len(ordered), QUESTION_NAMES):
        page = ordered[start : start + QUESTION_NAMES]
        absent |= await _ask(bus, page)
    return absent


async def _ask(bus: Bus, page: list[str]) -> set[str]:
    question = secrets.token_hex(8)
    async with bus.listen(subjects.blobs_missing(question)) as answers:
        await bus.notify(subjects.blobs_wanted(question), json.dumps(page).encode())
        with anyio.move_on_after(ANSWER_S):
            async for answer in answers:
                with apart("blobs_missing", subject=answer.subject):  # anyone may publish to core subjects
                    return set(json.loads(answer.body)) & set(page)
    log.debug("blobs.unanswered", names=len(page))
    return set(page)


async def send_blobs(
    bus: Bus, parts: Mapping[str, Part], *, turn: int = 0, sent: Progress = lambda *_: None
) -> None:
    """Send the blobs that the data pool lacks, waiting while the stream is full. `turn`: how often this was tried before. `sent` receives the bytes
    that are sent and the bytes to send. BusError if the bus does not take one; ValueError if a file has changed since it was packed."""
    absent = sorted(await missing_blobs(bus, parts))
    total, done = sum(parts[sha].size for sha in absent), 0
    sent(done, total)
    for start in range(0, len(absent), _WINDOW):
        page = absent[start : start + _WINDOW]
        bodies = await anyio.to_thread.run_sync(_read, [parts[sha] for sha in page])
        waiting = [_message(sha, body, turn) for sha, body in bodies.items()]
        while waiting:
            results = await bus.publish_many(waiting)
            refused = next(
                (r for r in results if isinstance(r, BusError) and not isinstance(r, StreamFull)), None
            )
            if refused is not None:
                raise refused
            waiting = [
                m for m, result in zip(waiting, results, strict=True) if isinstance(result, StreamFull)
            ]
            if waiting:
                await anyio.sleep(FULL_WAIT_S)
        done += sum(map(len, bodies.values()))
        sent(done, total)


def _read(parts: Sequence[Part]) -> dict[str, bytes]:
    return {part.sha: part.read() for part in parts}


def _message(sha: str, body: bytes, turn: int) -> Outgoing:
    # A new id at each turn: de-duplication must not suppress a blob that was lost after it was stored.
    return Outgoing(subject=subjects.blob(sha), msg_id=f"{sha}:{turn}", schema=SCHEMA, body=body)
