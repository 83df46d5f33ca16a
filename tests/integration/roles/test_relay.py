"""The relay and rebuilding: the messages in the outbox reach the bus, through crashes, refusals and wipes, without an open transaction in between."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast

import anyio
import msgspec
import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, BusError, Outgoing
from orchestrator.bus.nats import NatsBus
from orchestrator.bus.suspects import TRIES, Suspects
from orchestrator.contracts.events import (
    PolicyPublished,
    RolloutAssigned,
)
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.batches import NewVersion, publish
from orchestrator.pool.counter_names import OTHER
from orchestrator.pool.dead_letters import DeadMessage, dead_messages
from orchestrator.pool.outbox import enqueue
from orchestrator.pool.tables import outbox, rollouts
from orchestrator.roles.rebuild import REBUILT, rebuild, remind
from orchestrator.roles.relay import relay, relay_page
from orchestrator.settings.config import RunSection
from tests import builders
from tests.integration.pool.rig import owed, running
from tests.integration.roles.rig import (
    STREAMS,
    TIMING,
    Runners,
    Stage,
    dispatched,
    playing,
    staged,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]


async def assigned(stage: Stage, wanted: int) -> list[RolloutAssigned]:
    """Take that many assignments from the stream, and check that no other exists."""
    received: list[RolloutAssigned] = []
    async with stage.bus.subscribe(subjects.consume_work_rollout(stage.run.name)) as arriving:
        with anyio.fail_after(60):
            while len(received) < wanted:
                for delivery in await arriving.take(64):
                    received.append(msgspec.json.decode(delivery.body, type=RolloutAssigned))
                    await delivery.ack()
        with anyio.move_on_after(0.3):
            assert not await arriving.take(1), "one too many"
    return received


async def test_a_crash_between_publish_and_delete_is_harmless(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builders.accepted(stage.context.engine, stage.run, ["a"], size=2)
    assert await dispatched(stage) == 1

    async def crash(*_: object) -> None:
        raise KeyError("killed here")

    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr("orchestrator.roles.relay.settle", crash)
        await relay_page(stage.context)
    assert await stage.count("outbox") == 2
    assert await relay_page(stage.context) == 0, "they are still the dead relay's"
    await its_turn_is_over(stage)
    assert await relay_page(stage.context) == 2
    assert await stage.count("outbox") == 0
    assert len({event.rollout for event in await assigned(stage, 2)}) == 2


async def its_turn_is_over(stage: Stage) -> None:
    """As if a relay's time for its messages had passed."""
    async with stage.context.engine.begin() as connection:
        await connection.execute(update(outbox).values(not_before=func.now() - timedelta(seconds=1)))


async def test_while_the_bus_does_not_answer_no_transaction_is_open_and_another_relay_takes_over(
    stage: Stage,
) -> None:
    engine = stage.context.engine
    await builders.accepted(engine, stage.run, ["a"], size=2)
    assert await dispatched(stage) == 1
    requested, answers = anyio.Event(), anyio.Event()

    class Away:
        """A bus that is away until it is switched on."""

        async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
            requested.set()
            await answers.wait()
            return await stage.bus.publish_many(messages)

    waiting = replace(stage.context, bus=cast(Bus, Away()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay_page, waiting)
        with anyio.fail_after(60):
            await requested.wait()
        async with engine.connect() as connection:
            others = (
                "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            held = f"SELECT count(*) FROM pg_stat_activity WHERE {others} AND xact_start IS NOT NULL"
            assert await connection.scalar(text(held)) == 0
        assert await relay_page(stage.context) == 0, "it is not the other's turn yet"
        await its_turn_is_over(stage)
        assert await relay_page(stage.context) == 2
        answers.set()
    assert await stage.count("outbox") == 0
    await assigned(stage, 2)


async def test_a_message_that_nats_never_takes_is_a_dead_letter_and_holds_no_other_up(stage: Stage) -> None:
    run = stage.run
    news = PolicyPublished(run=run.name, version=0, path="/v0", manifest_sha="00", batch_no=None, revision=0)
    long = msgspec.structs.replace(news, path="/" + "x" * stage.bus.max_payload)
    async with stage.context.engine.begin() as connection:
        await enqueue(connection, run.run_id, subjects.policy(run.name), long)
        await enqueue(connection, run.run_id, f"nowhere.{run.name}", news)
    await builders.accepted(stage.context.engine, run, ["a"], size=2)
    assert await dispatched(stage) == 1
    assert await relay_page(stage.context) == 4
    assert await stage.count("outbox") == 0
    await assigned(stage, 2)
    letters = await dead(stage)
    assert [(letter.stream, letter.subject) for letter in letters] == [
        ("POLICY", subjects.policy(run.name)),
        (OTHER, f"nowhere.{run.name}"),
    ]
    assert "max_payload" in letters[0].reason and "no stream stores the subject" in letters[1].reason
    assert len(letters[0].body) > stage.bus.max_payload


async def dead(stage: Stage) -> list[DeadMessage]:
    async with stage.context.engine.connect() as connection:
        return await dead_messages(connection, stage.run.run_id)


async def test_a_message_that_nats_refuses_again_and_again_while_others_pass_is_a_dead_letter(
    stage: Stage,
) -> None:
    run, suspects, refused = stage.run, defaultdict[str, Suspects](Suspects), "the first"

    class Refuses:
        async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
            return [
                BusError("NATS refused a message") if refused.encode() in m.body else True for m in messages
            ]

    context = replace(stage.context, bus=cast(Bus, Refuses()))

    async def page(*paths: str, elsewhere: int = 0) -> int:
        wanted = [(subjects.policy(run.name), path) for path in paths]
        wanted += [(subjects.steps(run.name, "1"), "/elsewhere")] * elsewhere
        async with stage.context.engine.begin() as connection:
            for subject, path in wanted:
                news = PolicyPublished(
                    run=run.name, version=0, path=path, manifest_sha="00", batch_no=None, revision=0
                )
                await enqueue(connection, run.run_id, subject, news)
        await its_turn_is_over(stage)
        return await relay_page(context, suspects=suspects)

    assert await page("/the first") == 1
    for _ in range(2 * TRIES):  # nothing of its stream passes: the platform is at fault
        assert await page(elsewhere=1) == 2 and not await dead(stage)
    assert await page("/another") == 2
    [letter] = await dead(stage)
    assert letter.reason == "NATS never takes it: NATS refused a message" and await stage.count("outbox") == 0


async def test_a_full_stream_holds_no_other_message_up_and_loses_none(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url) as stage:
        await stage.wipe("WORK")
        small = tuple(replace(stream, max_msgs=1) if stream.name == "WORK" else stream for stream in STREAMS)
        async with NatsBus.connect(
            nats_server.url, name="small", prefix=stage.prefix, timing=TIMING, streams=small
        ) as bus:
            await bus.ensure_streams()
            context = replace(stage.context, bus=bus)
            await builders.accepted(engine, stage.run, ["a"], size=2)
            assert await dispatched(stage) == 1
            news = PolicyPublished(
                run=stage.run.name, version=0, path="/v0", manifest_sha="00", batch_no=None, revision=0
            )
            async with engine.begin() as connection:
                await enqueue(connection, stage.run.run_id, subjects.policy(stage.run.name), news)
            async with playing([partial(relay, context)]):
                await stage.reaches(1, "outbox")  # the second assignment; the policy went past it
                assert len(await assigned(stage, 2)) == 2
                await stage.reaches(0, "outbox")


async def test_a_row_is_published_by_its_own_run_when_it_is_due(stage: Stage) -> None:
    engine = stage.context.engine
    other = await builders.make_run(
        engine, stage.context.config.model_copy(update={"run": RunSection(name="other")})
    )
    event = RolloutAssigned(run=stage.run.name, rollout=1, attempt=1, epoch=1)
    async with engine.begin() as connection:
        await enqueue(connection, other.run_id, subjects.work_rollout("other"), event)
        await enqueue(
            connection, stage.run.run_id, subjects.work_rollout(stage.run.name), event, delay_s=3600
        )
        await enqueue(connection, stage.run.run_id, subjects.work_rollout(stage.run.name), event)
    assert await relay_page(stage.context) == 1
    assert await stage.count("outbox") == 1
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(outbox)) == 2


async def test_streams_towards_workers_are_rebuilt_from_the_database(stage: Stage) -> None:
    engine = stage.context.engine
    held = await running(engine, stage.run, 2, "running")
    await builders.accepted(engine, stage.run, ["queued"], size=2)
    await dispatched(stage)
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM outbox"))
        await connection.execute(
            update(rollouts)
            .where(rollouts.c.rollout_id == held[0].rollout_id)
            .values(state="finished", lease_epoch=2)
        )
        for version in (0, 1):
            new = NewVersion(version=version, parent=None, path=f"/v{version}", manifest_sha="00")
            await publish(
                connection, stage.run.run_id, stage.run.name, new, subjects.policy(stage.run.name), None
            )
        await connection.execute(text("DELETE FROM outbox"))
    assert [await rebuild(stage.context, stream) for stream in (*REBUILT, "STEPS")] == [3, 1, 0]
    messages = await owed(engine, stage.run)
    assert [
        body.get("version") for subject, body in messages if subject == subjects.policy(stage.run.name)
    ] == [1]
    work = [(body["epoch"], subject) for subject, body in messages if subject.startswith("work.")]
    assert sorted(work) == [
        (1, subjects.work_rollout(stage.run.name)),
        (1, subjects.work_rollout(stage.run.name)),
        (2, subjects.work_verify(stage.run.name)),
    ]


async def test_an_assignment_that_no_runner_took_for_long_is_published_again(stage: Stage) -> None:
    engine = stage.context.engine
    await builders.accepted(engine, stage.run, ["old", "new"], size=2)
    assert await dispatched(stage) == 2
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM outbox"))
        old = "UPDATE rollouts SET changed = now() - interval '6 minutes' FROM groups WHERE seq = 0 AND groups.group_id = rollouts.group_id"
        await connection.execute(text(old))
        assert await remind(connection, stage.context) == 2
    assert await stage.count("outbox") == 2


async def test_tasks_become_ready_groups_though_the_stream_of_work_is_deleted_on_the_way(
    stage: Stage,
) -> None:
    await stage.serves(0)
    runners = Runners(stage)
    stage.bus.on_stream_new(lambda stream: _rebuilt(stage, stream))
    async with playing(stage.core()):
        await stage.submit("a", "b", "c")
        await stage.reaches(6, "rollouts", state="queued")
        await stage.reaches(0, "outbox")
        await stage.wipe("WORK")
        async with playing(runners.roles()):
            await stage.reaches(3, "groups", state="ready")
            await stage.reaches(0, "outbox")
    assert await stage.count("rollouts", state="verified") == 6
    assert await stage.count("steps") == 12
    assert await stage.count("dead_letters") == 0
    assert sorted(result.rollout for result in runners.results) == sorted(
        {r.rollout for r in runners.results}
    )
    async with stage.context.engine.connect() as connection:
        query = "SELECT count(*), count(DISTINCT (rollout_id)) FROM rewards"
        assert tuple((await connection.execute(text(query))).one()) == (6, 6)


async def _rebuilt(stage: Stage, stream: str) -> None:
    await rebuild(stage.context, stream)
