"""Blobs: stores the parts of large tasks, and answers which ones are missing.

| produces | waits for | unblocked by |
|---|---|---|
| blobs, stored and then acked | BLOBS | publishers of large tasks |
| answers to publishers | questions (core NATS) | publishers |

A blob serves all runs, so one durable serves all orchestrators. A blob whose content does not fit its name is dead-lettered.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery, Notice
from orchestrator.bus.message_guard import apart
from orchestrator.pool import blobs
from orchestrator.pool.transact import transact
from orchestrator.roles.consume import Outcome, consume
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.liveness import current
from orchestrator.tasks.message import PART_BYTES

BATCH = 16
MAX_NAMES = 10_000


async def store_blobs(context: OrchestratorContext) -> None:
    """Consume until cancelled."""

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        refused: dict[int, Outcome] = {}
        found: dict[str, bytes] = {}
        for i, delivery in enumerate(deliveries):
            sha = delivery.subject.partition(".")[2]
            if len(delivery.body) > PART_BYTES:
                refused[i] = (
                    f"a blob has at most {PART_BYTES:,} bytes, not {len(delivery.body):,}: send the file in parts"
                )
            elif hashlib.sha256(delivery.body).hexdigest() != sha:
                refused[i] = "the subject is not blobs.<sha256 of the content>, in 64 digits of 0-9 and a-f"
            else:
                found[sha] = delivery.body
        await blobs.store(connection, found)
        return refused

    await consume(context, subjects.consume_blobs(), handle, batch=BATCH, at="blobs.commit")


async def answer_missing(context: OrchestratorContext) -> None:
    """Answer publishers until cancelled. A question that cannot be read, or has more than `MAX_NAMES` names, is dropped without an answer."""
    loop = current()
    async with context.bus.listen(subjects.every_blobs_wanted()) as questions:
        loop.idle("questions")
        async for question in questions:
            loop.busy("a question")
            with apart("blobs_wanted", subject=question.subject):
                await _answer(context, question)
            loop.idle("questions")


async def _answer(context: OrchestratorContext, question: Notice) -> None:
    """Answer one question. Raises an error for one that cannot be answered."""
    answer = subjects.blobs_missing(question.subject.partition(".")[2])
    names = json.loads(question.body)
    if len(names) > MAX_NAMES:
        raise ValueError(f"a question has at most {MAX_NAMES:,} names, not {len(names):,}")
    wanted = {bytes.fromhex(name).hex() for name in names}
    absent = await transact(context.engine, lambda c: blobs.missing(c, wanted), at="orchestrator.read")
    await context.bus.notify(answer, json.dumps(sorted(absent)).encode())
