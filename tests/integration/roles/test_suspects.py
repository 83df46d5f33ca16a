"""One message, rollout or group can end only itself, whatever error it causes in our own code."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import asyncpg
import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection
from structlog.testing import capture_logs

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.bus.suspects import TRIES
from orchestrator.contracts.events import SubmissionAnswered
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.pool import leases
from orchestrator.pool.leases import Expired
from orchestrator.pool.transact import transact
from orchestrator.roles import conclude, intake, reaper
from orchestrator.roles.consume import Outcome, consume
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.intake import Intake
from orchestrator.roles.reward import reward_group
from orchestrator.settings.timeouts import Timeouts, use
from tests.integration.pool.rig import ended, group_state, report, running, verify
from tests.integration.roles.rig import Stage, has_counted, playing, until
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]


class Breaking:
    """Handles tasks, and raises for those whose submission has a marked word."""

    def __init__(self, error: type[BaseException], mark: bytes = b"poison") -> None:
        self.error, self.mark = error, mark
        self.handled: list[str | None] = []
        self.failed = 0

    async def handle(
        self, connection: AsyncConnection, deliveries: Sequence[Delivery]
    ) -> Mapping[int, Outcome]:
        for delivery in deliveries:
            if self.mark in delivery.body:
                self.failed += len(deliveries) == 1
                raise self.error("its fault")
        self.handled += [delivery.msg_id for delivery in deliveries]
        return {}

    async def run(self, stage: Stage) -> None:
        await consume(stage.context, subjects.consume_tasks(), self.handle, at="tests")


@pytest.mark.parametrize(
    "error",
    [KeyError, AssertionError, TypeError, MemoryError, ZeroDivisionError, asyncpg.InternalClientError],
)
async def test_a_message_that_our_code_cannot_handle_is_buried_once_others_have_passed(
    stage: Stage, error: type[Exception]
) -> None:
    breaking = Breaking(error)
    await stage.submit("a", "poison", "b")
    async with playing([partial(breaking.run, stage)]):
        await stage.reaches(1, "dead_letters", run_id=stage.run.run_id)
        await stage.submit("c")
        await until(lambda: _of(len(breaking.handled) == 3))
        await stage.emptied("TASKS")
    [reason] = await stage.reasons()
    assert (
        reason
        == f"its handling failed {TRIES} times, the last time with {error.__name__}: {error('its fault')}"
    )


async def test_a_platform_that_handles_nothing_buries_nothing(stage: Stage) -> None:
    """As long as every message fails, none of them is at fault: they wait for the repair."""
    breaking = Breaking(KeyError, mark=b"{")
    await stage.submit("a", "b")
    async with playing([partial(breaking.run, stage)]):
        await until(lambda: _of(breaking.failed >= 2 * TRIES))
        assert await stage.count("dead_letters") == 0
        breaking.mark = b"nothing"
        await until(lambda: _of(len(breaking.handled) == 2))
    assert await stage.count("dead_letters") == 0


async def test_a_client_that_breaks_and_works_again_costs_a_repetition_alone(stage: Stage) -> None:
    breaks = itertools.chain([True, True, False], itertools.repeat(True))

    async def work(connection: AsyncConnection) -> int:
        if next(breaks):
            raise asyncpg.InternalClientError(
                "cannot switch to state 12; another operation (2) is in progress"
            )
        return int(await connection.scalar(text("SELECT 7")) or 0)

    assert await transact(stage.context.engine, work, at="tests") == 7
    with pytest.raises(asyncpg.InternalClientError):
        await transact(stage.context.engine, work, at="tests")


async def test_a_value_too_long_for_an_index_ends_only_its_own_message(stage: Stage) -> None:
    """A row that Postgres refuses for its size (SQLSTATE class 54) is refused at once."""
    with capture_logs() as logs:

        async def handle(
            connection: AsyncConnection, deliveries: Sequence[Delivery]
        ) -> Mapping[int, Outcome]:
            for delivery in deliveries:
                if b"poison" in delivery.body:
                    await connection.exec_driver_sql("SELECT ('[' || repeat('[', 100000))::json")
            return {}

        await stage.submit("a", "poison", "b")
        async with playing([lambda: consume(stage.context, subjects.consume_tasks(), handle, at="tests")]):
            await stage.reaches(1, "dead_letters")
            await stage.emptied("TASKS")
    assert not [line for line in logs if line["event"] == "message.failed"]
    assert "stack depth limit exceeded" in (await stage.reasons())[0]


async def test_a_message_whose_handling_postgres_ends_for_its_silence_is_buried_and_answered(
    stage: Stage,
) -> None:
    """Such a transaction is repeated only a few times, so that other messages come to their turn."""
    handled: list[bytes] = []
    answered: list[str] = []

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        for delivery in deliveries:
            if b"poison" in delivery.body:
                await connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 300")
                own = await connection.scalar(text("SELECT pg_backend_pid()"))
                await eventually(partial(_is_gone, stage, own))
            await connection.exec_driver_sql("SELECT 1")
            handled.append(delivery.body)
        return {}

    async def refused(delivery: Delivery, reason: str) -> None:
        answered.append(reason)

    await stage.submit("a", "poison", "b")
    role = partial(consume, stage.context, subjects.consume_tasks(), handle, refused=refused, at="tests")
    with use(Timeouts(pool_idle_s=0.2)):
        async with playing([role]):
            await stage.reaches(1, "dead_letters", run_id=stage.run.run_id)
            await stage.submit("c")
            await stage.emptied("TASKS")
    assert answered == await stage.reasons() and len(set(handled)) == 3
    assert f"its handling failed {TRIES} times, the last time with " in answered[0]
    assert (
        "TransactionEnded: PostgreSQL ended its transaction 2 times, because nothing was sent for"
        in answered[0]
    )


async def _is_gone(stage: Stage, pid: int) -> bool:
    async with stage.context.engine.connect() as connection:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        return bool(await connection.scalar(query, {"pid": pid}) == 0)


async def test_the_sender_of_a_task_that_our_code_cannot_handle_gets_an_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = intake.check_stage

    def check(stages: Any, domain: str, difficulty: str) -> None:
        if domain == "poison":
            raise KeyError("a fault of ours")
        checked(stages, domain, difficulty)

    monkeypatch.setattr(intake, "check_stage", check)
    async with (
        stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
        playing([Intake(stage.context, ["shell"]).run]),
    ):
        await stage.submit("bad", domain="poison")
        await stage.submit("good")
        answers: dict[str, SubmissionAnswered] = {}
        async for notice in notices:
            answer = msgspec.json.decode(notice.body, type=SubmissionAnswered)
            answers[answer.submission] = answer
            if len(answers) == 2:
                break
    assert answers["good"].status is SubmissionStatus.ACCEPTED
    assert answers["bad"].status is SubmissionStatus.REJECTED
    assert "KeyError: 'a fault of ours'" in (answers["bad"].reason or "")


async def test_a_group_whose_rewards_cannot_be_computed_is_dead_and_the_next_one_is_rewarded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await running(stage.context.engine, stage.run, 2)
    second = await running(stage.context.engine, stage.run, 2, "another")
    compute, poison = reward_group, first[0].group_id

    def reward(group: Any, *rest: Any, **named: Any) -> Any:
        if group.group_id == poison:
            raise ZeroDivisionError("division by zero")
        return compute(group, *rest, **named)

    monkeypatch.setattr(conclude, "reward_group", reward)
    for n, lease in enumerate((*first, *second)):
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
        await verify(stage.context, lease.rollout_id, float(n % 2))
    assert await stage.count("groups", state="ready") == 1
    state, reason = await group_state(stage.context.engine, poison)
    assert (state, reason) == (
        "dead",
        "its rewards could not be computed: ZeroDivisionError: division by zero",
    )
    assert await has_counted(stage, "groups_unrewarded", 1) and await stage.count("dead_letters") == 0


DAMAGED = "DO $$ BEGIN RAISE EXCEPTION 'invalid page in block 7' USING ERRCODE = 'XX001'; END $$"


@pytest.mark.parametrize(
    ("fault", "error"),
    [("code", "KeyError: 'a fault of ours'"), ("page", "InternalError: invalid page in block 7")],
)
async def test_a_lease_that_our_code_cannot_take_back_ends_only_its_own_group(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fault: str, error: str
) -> None:
    first = await running(stage.context.engine, stage.run, 2)
    second = await running(stage.context.engine, stage.run, 2, "another")
    take_back = reaper._take_back

    async def take(connection: AsyncConnection, context: OrchestratorContext, lease: Expired) -> None:
        if lease.rollout_id == first[0].rollout_id:
            if fault == "page":
                await connection.exec_driver_sql(DAMAGED)
            raise KeyError("a fault of ours")
        await take_back(connection, context, lease)

    monkeypatch.setattr(reaper, "_take_back", take)
    async with stage.context.engine.begin() as connection:
        await connection.exec_driver_sql(
            "UPDATE rollouts SET lease_until = clock_timestamp() - interval '1 hour'"
        )
    failures: reaper.Failures = reaper.Failures()
    for n in range(TRIES):
        async with stage.context.engine.begin() as connection:
            if n == 1:  # no other lease is there to be taken back
                left = await leases.expired(connection, stage.context.run_id)
                assert [lease.rollout_id for lease in left] == [first[0].rollout_id]
            await reaper.reap(connection, stage.context, failures=failures)
    state, reason = await group_state(stage.context.engine, first[0].group_id)
    assert (state, reason) == ("dead", f"its lease could not be taken back: {error}")
    assert await stage.count("rollouts", group_id=first[0].group_id, state="lost") == 2
    assert await stage.count("rollouts", group_id=second[0].group_id, state="queued") == 2


async def test_an_error_of_postgres_that_meets_every_lease_is_the_platforms_and_ends_no_group(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(stage.context.engine, stage.run, 2)
    await running(stage.context.engine, stage.run, 2, "another")

    async def take(connection: AsyncConnection, context: OrchestratorContext, lease: Expired) -> None:
        await connection.exec_driver_sql("SELECT * FROM renamed_by_an_operator")

    monkeypatch.setattr(reaper, "_take_back", take)
    async with stage.context.engine.begin() as connection:
        await connection.exec_driver_sql(
            "UPDATE rollouts SET lease_until = clock_timestamp() - interval '1 hour'"
        )
    failures = reaper.Failures()
    for _ in range(2 * TRIES):
        with pytest.raises(ProgrammingError, match="renamed_by_an_operator"):
            async with stage.context.engine.begin() as connection:
                await reaper.reap(connection, stage.context, failures=failures)
    assert await stage.count("groups", state="dispatched") == 2
    assert await stage.count("rollouts", state="running") == 4


async def _of(value: bool) -> bool:
    return value
