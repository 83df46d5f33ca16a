"""Submissions around the end of a run: each has an answer and one terminal state, at whatever point the orchestrator or the end is held."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text

from orchestrator.bus import subjects
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.pool import prune
from orchestrator.pool.runs import begin_end
from orchestrator.pool.transact import once
from orchestrator.publish import Answer, publish_tasks
from orchestrator.roles.intake import Intake
from orchestrator.roles.run_end import run_end
from orchestrator.runtime import failpoints
from tests.integration.audit.audited import no_violations
from tests.integration.roles.rig import TASK, Role, Runners, Stage, playing, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

ACCEPTED = (SubmissionStatus.ACCEPTED, None)
PATIENCE_S = 60.0


@dataclass(slots=True)
class Gate:
    """A failpoint that holds the first to arrive until it is opened."""

    reached: anyio.Event = field(default_factory=anyio.Event)
    opened: anyio.Event = field(default_factory=anyio.Event)

    async def holds(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            await self.reached.wait()


Hold = Callable[[str], Gate]


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    gates: dict[str, Gate] = {}

    async def reach(point: str) -> None:
        gate = gates.pop(point, None)
        if gate is not None:
            gate.reached.set()
            await gate.opened.wait()

    monkeypatch.setattr(failpoints, "directory", tmp_path)
    monkeypatch.setattr(failpoints, "reach", reach)
    return lambda point: gates.setdefault(point, Gate())


@dataclass(slots=True)
class Client:
    """Publishes single tasks as `penstock tasks publish` does, and ends the run as `penstock run end` does."""

    stage: Stage
    answers: dict[str, Answer] = field(default_factory=dict)

    async def submit(self, submission: str, purpose: Purpose = Purpose.TRAIN) -> None:
        """Returns when it is answered."""
        event = TaskSubmitted(task=TASK, submission=submission, purpose=purpose)
        async with self.stage.connect() as bus:
            self.answers |= await publish_tasks(
                bus, self.stage.run.name, [("coding", event)], timeout_s=PATIENCE_S
            )

    async def end(self) -> None:
        """Returns when it is committed."""
        assert await once(
            self.stage.context.engine,
            lambda connection: begin_end(connection, self.stage.run.run_id, "requested by a person"),
            at="person.commit",
        )


@pytest.fixture
def client(stage: Stage) -> Client:
    return Client(stage)


def intake(stage: Stage) -> Role:
    return Intake(stage.context, ["shell"]).run


async def a_lock_is_waited_for(stage: Stage) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with stage.context.engine.connect() as connection:
        return bool(await connection.scalar(text(query)))


async def fates(stage: Stage) -> dict[str, list[str | None]]:
    """Per accepted submission: its group's states, and `the run ends` and `the run has ended` between them, in the order of their commits.
    Each of these transactions waits for the row of the run, or of its queue, before it writes its history."""
    query = """SELECT g.submission, array_agg(CASE WHEN t.kind = 'run' THEN 'the run is ' || t.to_state
                 ELSE concat_ws(': ', t.to_state, t.reason) END ORDER BY t.transition_id) AS states
          FROM groups g JOIN transitions t ON t.run_id = g.run_id
           AND (t.kind = 'run' AND t.from_state IS NOT NULL OR t.kind = 'group' AND t.entity_id = g.group_id)
         WHERE g.run_id = :run GROUP BY 1"""
    async with stage.context.engine.connect() as connection:
        rows = await connection.execute(text(query), {"run": stage.run.run_id})
        return {row.submission: row.states for row in rows}


FILTERED = ["accepted", "the run is ending", "filtered: run_ended", "the run is ended"]
SCORED_FIRST = ["the run is ending", "accepted", "dispatched", "scored", "the run is ended"]
SCORED_LATER = ["the run is ending", "the run is ended", "accepted", "dispatched", "scored"]


def refused(stage: Stage, why: str) -> Answer:
    reason = f"run {stage.run.name!r} accepts no more training tasks: its intake is closed, because it {why}"
    return SubmissionStatus.REJECTED, reason


@pytest.mark.parametrize(
    "point", ["intake.commit.after", "notify.before", "notify.after", "ack.tasks.before", "ack.tasks.after"]
)
async def test_a_task_that_is_accepted_when_the_run_ends_is_filtered_by_the_end_and_answered(
    stage: Stage, client: Client, hold: Hold, point: str
) -> None:
    gate = hold(point)
    async with playing([intake(stage), partial(run_end, stage.context)]), anyio.create_task_group() as group:
        group.start_soon(client.submit, "one")
        await gate.holds()
        await client.end()
        await stage.reaches(1, "runs", state="ended")
        gate.opened.set()
    assert client.answers == {"one": ACCEPTED}
    assert await fates(stage) == {"one": FILTERED}
    await no_violations(stage.context.engine, stage.run.name, ledger=["one"])


async def test_the_end_waits_for_an_acceptance_that_is_not_committed(
    stage: Stage, client: Client, hold: Hold
) -> None:
    gate = hold("intake.commit.before")
    async with playing([intake(stage), partial(run_end, stage.context)]):
        async with anyio.create_task_group() as group:
            group.start_soon(client.submit, "one")
            await gate.holds()
            group.start_soon(client.end)
            await until(partial(a_lock_is_waited_for, stage))
            assert await stage.count("runs", state="active") == 1
            gate.opened.set()
        await stage.reaches(1, "runs", state="ended")
    assert client.answers == {"one": ACCEPTED}
    assert await fates(stage) == {"one": FILTERED}
    await no_violations(stage.context.engine, stage.run.name, ledger=["one"])


async def test_a_task_that_is_read_while_the_end_is_not_committed_waits_for_it_and_is_refused(
    stage: Stage, client: Client, hold: Hold
) -> None:
    gate = hold("person.commit.before")
    async with playing([intake(stage), partial(run_end, stage.context)]):
        async with anyio.create_task_group() as group:
            group.start_soon(client.end)
            await gate.holds()
            group.start_soon(client.submit, "one")
            await until(partial(a_lock_is_waited_for, stage))
            assert await stage.count("submissions") == 0
            gate.opened.set()
        await stage.reaches(1, "runs", state="ended")
    assert client.answers["one"] in (refused(stage, "is ending"), refused(stage, "has ended"))
    assert await fates(stage) == {}
    await no_violations(stage.context.engine, stage.run.name, ledger=["one"])


async def test_tasks_that_lay_on_the_stream_when_the_run_ended_and_later_ones_are_refused(
    stage: Stage, client: Client
) -> None:
    async with anyio.create_task_group() as group:
        await stage.submit("before")  # the bus has it, and no one reads it
        group.start_soon(client.submit, "waits")
        await client.end()
        async with playing([intake(stage)]):
            await stage.reaches(2, "submissions", status="rejected")
    assert client.answers == {"waits": refused(stage, "is ending")}
    async with playing([intake(stage), partial(run_end, stage.context)]):
        await stage.reaches(1, "runs", state="ended")
        await client.submit("before")  # its sender asks again
        await client.submit("after")
    assert client.answers["before"] == refused(stage, "is ending")
    assert client.answers["after"] == refused(stage, "has ended")
    await no_violations(stage.context.engine, stage.run.name, ledger=["before", "waits", "after"])


async def test_an_orchestrator_that_dies_before_its_answer_leaves_a_task_that_the_end_filters_and_the_next_one_answers(
    stage: Stage, client: Client, hold: Hold
) -> None:
    gate = hold("intake.commit.after")
    async with anyio.create_task_group() as group:
        group.start_soon(client.submit, "one")
        async with playing([intake(stage)]):
            await gate.holds()
        async with playing([partial(run_end, stage.context)]):
            await client.end()
            await stage.reaches(1, "runs", state="ended")
        async with playing([intake(stage)]):
            await until(lambda: answered(client, "one"))
    assert client.answers == {"one": ACCEPTED}
    assert await fates(stage) == {"one": FILTERED}
    await no_violations(stage.context.engine, stage.run.name, ledger=["one"])


async def answered(client: Client, submission: str) -> bool:
    return submission in client.answers


# --- evaluations and recordings: an ending run waits for those that it has accepted, an ended one still takes them ---


async def test_a_run_does_not_end_while_the_acceptance_of_a_recording_is_not_committed(
    stage: Stage, client: Client, hold: Hold
) -> None:
    await stage.serves(0)
    gate = hold("intake.commit.before")
    runners = Runners(stage, pool=subjects.POOL_EVAL)
    await client.end()
    async with playing([*stage.core(), *runners.roles()]):
        async with anyio.create_task_group() as group:
            group.start_soon(client.submit, "one", Purpose.RECORD)
            await gate.holds()
            async with playing([partial(run_end, stage.context)]):
                await until(partial(a_lock_is_waited_for, stage))
                gate.opened.set()
                await stage.reaches(1, "runs", state="ended")
        await stage.reaches(1, "groups", state="scored")
    assert client.answers == {"one": ACCEPTED}
    assert await fates(stage) == {"one": SCORED_FIRST}
    await no_violations(stage.context.engine, stage.run.name, ledger=["one"])


async def test_a_recording_that_lay_on_the_stream_when_the_run_ended_is_scored_and_a_pruned_run_refuses_it(
    stage: Stage, client: Client
) -> None:
    await stage.serves(0)
    await stage.submit("before", purpose=Purpose.RECORD)
    await client.end()
    async with playing([partial(run_end, stage.context)]):
        await stage.reaches(1, "runs", state="ended")
    runners = Runners(stage, pool=subjects.POOL_EVAL)
    async with playing([*stage.core(), *runners.roles()]):
        await stage.reaches(1, "groups", state="scored")
        assert await fates(stage) == {"before": SCORED_LATER}
        await no_violations(stage.context.engine, stage.run.name, ledger=["before"])
        async with stage.context.engine.begin() as connection:
            await prune.begin(connection, stage.run)
        await client.submit("after", Purpose.RECORD)
    reason = f"run {stage.run.name!r} accepts no more tasks: it has ended and is pruned"
    assert client.answers == {"after": (SubmissionStatus.REJECTED, reason)}
