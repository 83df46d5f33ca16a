"""Dead letters are stored once, for any number of finders and arrivals, and `penstock dead` finds them."""

from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread
import nats
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.pool.counter_names import meaning
from orchestrator.pool.dead_letters import (
    DeadMessage,
    Letter,
    dead_messages,
    keep_unsendable,
    store,
)
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.tables import dead_letters
from orchestrator.pool.transitions import counts
from orchestrator.roles.dead_letters import store_dead_letters
from orchestrator.roles.ingest import ingest_steps
from tests import builders
from tests.integration.pool.rig import counter, small
from tests.integration.roles.rig import Stage, playing, until

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def test_a_letter_is_kept_once_by_each_of_its_bodies(engine: AsyncEngine, database_url: str) -> None:
    run = await builders.make_run(engine, small())
    long = "x" * 5000  # more than an index takes
    async with open_engine(database_url, Role.GATEWAY) as gateway:
        for body in (b"{}", b"{}", b"[]", b"{}"):
            for name in ("7:1:0:step", long):
                async with gateway.begin() as connection:
                    await keep_unsendable(
                        connection, run.run_id, "steps.run.7", "StepRecorded/1", name, body, "too large"
                    )
    async with engine.connect() as connection:
        letters = await dead_messages(connection, run.run_id)
    assert [(each.msg_id, each.body) for each in letters] == [
        ("7:1:0:step", b"{}"),
        (long, b"{}"),
        ("7:1:0:step", b"[]"),
        (long, b"[]"),
    ]
    assert await counter(engine, run, "steps_refused") == 4


async def test_of_no_run_and_without_an_id_it_is_kept_once_as_well(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    letter = Letter(
        run_id=None,
        stream="TASKS",
        subject="tasks.unknown.coding",
        schema=None,
        msg_id=None,
        reason="the run does not exist",
        deliveries=1,
        body=b"\x00",
    )
    async with engine.begin() as connection:
        assert [await store(connection, letter, counted=run.run_id) for _ in range(3)] == [True, False, False]
        assert len(await dead_messages(connection, run.run_id)) == 1
    with pytest.raises(IntegrityError, match="dead_letters_once"):
        async with engine.begin() as connection:
            await connection.execute(
                text(
                    "INSERT INTO dead_letters (stream, subject, reason, deliveries, body) VALUES ('TASKS', 'tasks.unknown.coding', '', 1, '\\x00')"
                )
            )


async def test_a_message_whose_settling_was_lost_after_the_commit_is_one_letter(stage: Stage) -> None:
    """As after a crash in between: the same message comes again, and is refused again."""
    subject = subjects.steps(stage.run.name, "1")
    async with playing([partial(ingest_steps, stage.context)]):
        await stage.bus.publish(
            Outgoing(subject=subject, msg_id="once", schema="StepRecorded/1", body=b"junk")
        )
        await stage.reaches(1, "dead_letters")
    await stage.wipe("STEPS")  # it forgets that it had the id
    await stage.bus.ensure_streams()
    await stage.bus.publish(Outgoing(subject=subject, msg_id="once", schema="StepRecorded/1", body=b"junk"))
    await stage.bus.publish(Outgoing(subject=subject, msg_id="other", schema="StepRecorded/1", body=b"junk"))
    async with playing([partial(ingest_steps, stage.context)]):
        await stage.reaches(2, "dead_letters")
    async with stage.context.engine.connect() as connection:
        query = select(dead_letters.c.msg_id, func.count()).group_by(dead_letters.c.msg_id)
        assert {tuple(row) for row in await connection.execute(query)} == {("once", 1), ("other", 1)}
    assert await counter(stage.context.engine, stage.run, "steps_refused") == 2


# --- of processes that may not write them -----------------------------------------------------------------------


async def refuse(
    stage: Stage, msg_id: str, body: bytes = b"junk", *, times: int = 1, kept: bool = False
) -> None:
    """A runner's reaction to a message that is not an assignment; repeated, as after a death before the message was settled."""
    subject = subjects.work_rollout(stage.run.name)
    await stage.bus.publish(Outgoing(subject=subject, msg_id=msg_id, schema="RolloutAssigned/1", body=body))
    async with stage.bus.subscribe(subjects.consume_work_rollout(stage.run.name)) as arriving:
        (delivery,) = await arriving.take(1)
        for n in range(times):
            if n:
                await stage.wipe("DEAD")  # it forgets that it had the letter
                await stage.bus.ensure_streams()
            await stage.bus.dead_letter(delivery, "it is not an assignment", kept=kept)


async def letters(stage: Stage) -> list[DeadMessage]:
    async with stage.context.engine.connect() as connection:
        return await dead_messages(connection, stage.run.run_id)


async def test_a_message_that_a_runner_refuses_is_a_dead_letter_of_its_run_and_counted(stage: Stage) -> None:
    async with playing([partial(store_dead_letters, stage.context)]):
        await refuse(stage, "w1")
        await stage.reaches(1, "dead_letters")
        await refuse(stage, "w2", b"more", times=2)
        await stage.reaches(2, "dead_letters")
    first, second = await letters(stage)
    subject = subjects.work_rollout(stage.run.name)
    assert (first.run_id, first.stream, first.subject) == (stage.run.run_id, "WORK", subject)
    assert (first.schema, first.msg_id, first.body) == ("RolloutAssigned/1", "w1", b"junk")
    assert (first.reason, first.deliveries) == ("it is not an assignment", 1)
    assert (second.msg_id, second.body) == ("w2", b"more")
    assert await counter(stage.context.engine, stage.run, "work_refused") == 2


async def test_a_letter_that_comes_again_is_kept_once_and_what_is_kept_elsewhere_or_no_letter_is_not(
    stage: Stage,
) -> None:
    await refuse(stage, "kept", kept=True)
    await stage.bus.publish(Outgoing(subject="dead.work", msg_id="strange", schema="", body=b"anything"))
    letter = {
        subjects.HEADER_DEAD_KEPT: "no",
        subjects.HEADER_DEAD_SUBJECT: subjects.work_rollout(stage.run.name),
        subjects.HEADER_DEAD_DELIVERIES: "9" * 18,
        subjects.HEADER_DEAD_BODY_BYTES: "1000",
    }
    for name in ("once", "again"):
        await stage.bus.publish(
            Outgoing(subject="dead.work", msg_id=name, schema="", body=b"cut", headers=letter)
        )
    await stage.bus.publish(
        Outgoing(
            subject="dead.work",
            msg_id="whose",
            schema="",
            body=b"",
            headers={subjects.HEADER_DEAD_KEPT: "no"},
        )
    )
    async with playing([partial(store_dead_letters, stage.context)]):
        await until(lambda: _kept(stage, 2))
        await until(lambda: _acked(stage, 5))
    cut, strange = await letters(stage)
    assert cut.reason == "no reason given (the first 3 of 1,000 bytes are kept)"
    assert (cut.body, cut.deliveries) == (b"cut", 2**31 - 1)
    assert (strange.run_id, strange.subject) == (None, "dead.work")


async def test_letters_on_invented_streams_are_kept_and_share_one_counter(stage: Stage) -> None:
    unkept = {subjects.HEADER_DEAD_KEPT: "no"}
    for name in ("one", "two", "three", "work"):
        letter = Outgoing(subject=f"dead.{name}", msg_id=name, schema="", body=b"x", headers=unkept)
        await stage.bus.publish(letter)
    async with playing([partial(store_dead_letters, stage.context)]):
        await until(lambda: _kept(stage, 4))
    assert [(each.stream, each.reason) for each in await letters(stage)] == [
        ("OTHER", "'dead.one' names no stream: no reason given"),
        ("OTHER", "'dead.two' names no stream: no reason given"),
        ("OTHER", "'dead.three' names no stream: no reason given"),
        ("WORK", "no reason given"),
    ]
    async with stage.context.engine.connect() as connection:
        assert await counts(connection, stage.run.run_id) == {"other_refused": 3, "work_refused": 1}
    assert meaning("other_refused") == "letters about messages of streams that do not exist"


async def _kept(stage: Stage, n: int) -> bool:
    return len(await letters(stage)) == n


async def _acked(stage: Stage, n: int) -> bool:
    client = await nats.connect(stage.url)
    try:
        found = await client.jetstream().consumer_info(f"{stage.prefix.upper()}_DEAD", "letters")
    finally:
        await client.close()
    return bool(found.num_pending == 0 and found.num_ack_pending == 0 and found.delivered.consumer_seq == n)


async def test_a_message_that_is_never_acknowledged_ends_as_a_dead_letter_of_its_run(stage: Stage) -> None:
    subject = subjects.steps(stage.run.name, "7")
    impatient = replace(subjects.consume_steps(stage.run.name), ack_wait_s=0.2, max_deliver=2)
    async with playing([partial(store_dead_letters, stage.context)]):
        await stage.bus.publish(
            Outgoing(subject=subject, msg_id="7:1:0:step", schema="StepRecorded/1", body=b"{}")
        )
        async with stage.bus.subscribe(impatient) as arriving, anyio.create_task_group() as group:

            async def take() -> None:
                while True:
                    await arriving.take(1)

            group.start_soon(take)
            await stage.reaches(1, "dead_letters", stream="STEPS")
            group.cancel_scope.cancel()
    (letter,) = await letters(stage)
    assert (letter.subject, letter.msg_id) == (subject, "7:1:0:step")
    assert letter.reason == "delivered 2 times without an acknowledgement"
