"""The data pool under any order of dispatch, leases, deaths, results, verdicts, claims, commits, quarantines, rewinds, rescores and the run's end.

The same functions as in production on a real database; after each step the invariants of the queue are read back by SQL.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.events import RolloutFinished, VerdictReached
from orchestrator.contracts.states import (
    GROUP_TRANSITIONS,
    ROLLOUT_TRANSITIONS,
    BatchState,
    FailureClass,
    GroupState,
    RolloutState,
)
from orchestrator.pool import (
    batches,
    leases,
    results,
    transitions,
)
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.engine import bare_engine
from orchestrator.pool.policy_versions import newest_version, next_version
from orchestrator.pool.quarantine import quarantine
from orchestrator.pool.rescore import Chosen
from orchestrator.pool.rewind import FIRST, rewind
from orchestrator.pool.run_end import filter_open
from orchestrator.pool.runs import begin_end, finish_end
from orchestrator.roles.complete import complete_reported
from orchestrator.roles.conclude import conclude_group
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import dispatch
from orchestrator.roles.reaper import reap
from orchestrator.roles.rescore import rescore
from orchestrator.roles.retry_policy import verify_again
from orchestrator.scheduling.queue_policies import Windowed
from orchestrator.scheduling.replay import Transition, replay
from tests import builders
from tests.integration.pool.rig import OWNER, context_of, small

pytestmark = pytest.mark.services
T = TypeVar("T")
P, WINDOW = 2, Windowed(2)


class PoolMachine(RuleBasedStateMachine):
    """One run; P = 2, G = 2, N = 6, W = 2, two attempts. `database` is set by the test."""

    database: ClassVar[tuple[asyncio.Runner, AsyncEngine]]
    number: ClassVar[int] = 0

    @initialize()
    def start(self) -> None:
        type(self).number += 1
        config = small(f"m{self.number}", max_attempts=2)
        retry = config.rollout.model_copy(update={"retry_delay_s": 0.0})
        self.run = self.await_(builders.make_run(self.engine, config.model_copy(update={"rollout": retry})))
        self.context: OrchestratorContext = context_of(self.engine, self.run)
        first = NewVersion(version=0, parent=None, path="/v0", manifest_sha="00")
        self.transaction(
            lambda c: batches.publish(c, self.run.run_id, self.run.name, first, "policy.m", None)
        )
        self.submitted = 0
        self.ended = False

    @property
    def engine(self) -> AsyncEngine:
        return self.database[1]

    def await_(self, work: Awaitable[T]) -> T:
        async def within() -> T:
            return await work

        return self.database[0].run(within())

    def transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async def within() -> T:
            async with self.engine.begin() as connection:
                return await work(connection)

        return self.database[0].run(within())

    def query(self, sql: str) -> list[Any]:
        async def work(connection: AsyncConnection) -> list[Any]:
            return list((await connection.execute(text(sql), {"r": self.run.run_id})).all())

        return self.transaction(work)

    def rollouts_in(self, state: RolloutState) -> list[Any]:
        return self.query(
            "SELECT rollout_id, group_id, attempt, lease_epoch FROM rollouts "
            f"WHERE run_id = :r AND state = '{state}' ORDER BY rollout_id"
        )

    def one_of(self, data: st.DataObject, state: RolloutState) -> Any:
        found = self.rollouts_in(state)
        return data.draw(st.sampled_from(found)) if found else None

    # --- possible events ------------------------------------------------------------------------------------

    @precondition(lambda self: not self.ended)
    @rule(count=st.integers(1, 3))
    def submit_and_dispatch(self, count: int) -> None:
        names = [f"t{self.submitted + n}" for n in range(count)]
        self.await_(builders.accepted(self.engine, self.run, names, size=2))
        self.submitted += count
        self.transaction(lambda c: dispatch(c, self.context))

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        for before in (RolloutState.QUEUED, RolloutState.FINISHED):
            if row := self.one_of(data, before):
                self.leased(row, before)

    def leased(self, row: Any, before: RolloutState) -> None:
        taken = lambda c: leases.lease(
            c, self.run.run_id, row.rollout_id, row.lease_epoch, OWNER, 60.0, before=before
        )
        assert self.transaction(taken) is not None
        assert self.transaction(taken) is None, "an epoch is leased once"

    @rule(
        data=st.data(),
        failure=st.sampled_from(
            [
                FailureClass.COMPLETED,
                FailureClass.COMPLETED,
                FailureClass.POLICY_FAILURE,
                FailureClass.INFRA_FAILURE,
                FailureClass.TIMEOUT,
            ]
        ),
    )
    def report(self, data: st.DataObject, failure: FailureClass) -> None:
        if row := self.one_of(data, RolloutState.RUNNING):
            self.reported(row, failure)

    def reported(self, row: Any, failure: FailureClass) -> None:
        event = RolloutFinished(
            run=self.run.name,
            rollout=row.rollout_id,
            attempt=row.attempt,
            epoch=row.lease_epoch,
            failure_class=failure,
            reason="drawn",
        )

        async def say(connection: AsyncConnection) -> bool:
            await transitions.lock_run(connection, self.run.run_id)
            moved = await results.report(connection, self.run.run_id, event)
            await complete_reported(connection, self.context, [row.rollout_id])
            return moved

        assert self.transaction(say)
        assert not self.transaction(say), "a repeat is a no-op"

    @rule(data=st.data(), reward=st.sampled_from([0.0, 1.0, 1.0, None]))
    def verdict(self, data: st.DataObject, reward: float | None) -> None:
        if row := self.one_of(data, RolloutState.VERIFYING):
            self.judged(row, reward)

    def judged(self, row: Any, reward: float | None) -> None:
        event = VerdictReached(
            run=self.run.name,
            rollout=row.rollout_id,
            attempt=row.attempt,
            epoch=row.lease_epoch,
            failure_class=FailureClass.COMPLETED,
            reward=reward,
        )

        async def say(connection: AsyncConnection) -> None:
            await transitions.lock_run(connection, self.run.run_id)
            if reward is None:
                await verify_again(
                    connection, self.context, row.rollout_id, row.attempt, row.lease_epoch, "drawn"
                )
            elif await results.verdict(connection, self.run.run_id, event):
                await conclude_group(connection, self.context, row.group_id)

        self.transaction(say)
        self.transaction(say)

    @precondition(lambda self: not self.ended)
    @rule(data=st.data(), count=st.integers(2, 4), commits=st.integers(0, 3), undo=st.booleans())
    def all_work_is_done(self, data: st.DataObject, count: int, commits: int, undo: bool) -> None:
        """The result of many steps: every rollout ends well, the even ones with a reward, batches are committed, and some undone."""
        self.submit_and_dispatch(count)
        for before in (RolloutState.QUEUED, RolloutState.FINISHED):
            for row in self.rollouts_in(before):
                self.leased(row, before)
            for row in self.rollouts_in(RolloutState.RUNNING):
                self.reported(row, FailureClass.COMPLETED)
        for row in self.rollouts_in(RolloutState.VERIFYING):
            self.judged(row, 1.0 - row.rollout_id % 2)
        for _ in range(commits):
            self.claim(then="commit")
        if undo:
            self.rewind(data)

    @rule()
    def leases_run_out(self) -> None:
        self.query(
            "UPDATE rollouts SET lease_until = now() - interval '1 s' WHERE run_id = :r AND lease_until IS NOT NULL RETURNING 1"
        )
        self.transaction(lambda c: reap(c, self.context))

    @rule(then=st.sampled_from(["nothing", "commit", "commit", "quarantine"]))
    def claim(self, then: str) -> None:
        claim = lambda c: batches.take(c, self.run.run_id, WINDOW, P, 1)
        batch = self.transaction(claim)
        if batch is None or batch.state is not BatchState.CLOSED:
            return
        assert self.transaction(claim) == batch
        if then == "quarantine":
            assert self.transaction(lambda c: quarantine(c, self.run.run_id, batch.batch_id, "bad"))
        elif then == "commit":

            async def commit(connection: AsyncConnection) -> bool:
                version = await next_version(connection, self.run.run_id)
                newest = await newest_version(connection, self.run.run_id)
                assert newest is not None
                new = NewVersion(
                    version=version, parent=newest.version, path=f"/v{version}", manifest_sha=f"{version:02x}"
                )
                return await batches.commit(
                    connection,
                    self.run.run_id,
                    self.run.name,
                    batch=batch,
                    new=new,
                    metrics=[{"loss": 0.0}],
                    subject="policy.m",
                )

            assert self.transaction(commit)
            assert not self.transaction(commit)

    @precondition(lambda self: not self.ended)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        counted = self.query(
            "SELECT batch_no FROM batches WHERE run_id = :r AND state = 'committed' ORDER BY 1"
        )
        to_batch = data.draw(st.sampled_from([FIRST, *(row.batch_no for row in counted)]))
        before = self.group_states()
        used = {
            row.group_id
            for row in self.query(
                "SELECT i.group_id FROM batch_items i JOIN batches b USING (batch_id) "
                f"WHERE b.run_id = :r AND b.state <> 'voided' AND b.batch_no > {to_batch}"
            )
        }
        undo = lambda c: rewind(c, self.run.run_id, to_batch, "policy.m", "drawn", lambda version: True)
        if not used:
            with pytest.raises(ConfigurationError, match="nothing to undo"):
                self.transaction(undo)
            assert self.group_states() == before
            return
        done = self.transaction(undo)
        assert done.groups == len(used)
        assert self.group_states() == before | dict.fromkeys(used, "ready"), "exactly those are free again"
        newest = self.transaction(lambda c: newest_version(c, self.run.run_id))
        assert newest is not None and newest.batch_no == (None if to_batch == FIRST else to_batch)
        assert self.query("SELECT 1 FROM batches WHERE run_id = :r AND state IN ('open', 'closed')") == []

    @precondition(lambda self: not self.ended)
    @rule()
    def rescore(self) -> None:
        before = self.group_states()
        done = self.transaction(lambda c: rescore(c, self.run, Chosen(), "drawn", {}))
        ready = {group: "dispatched" for group, state in before.items() if state == "ready"}
        assert self.group_states() == before | ready, "what a batch has, or has ended, is left alone"
        assert done.groups >= len(ready)

    def group_states(self) -> dict[int, str]:
        return {
            row.group_id: row.state
            for row in self.query("SELECT group_id, state FROM groups WHERE run_id = :r")
        }

    @precondition(lambda self: self.submitted > 15 and not self.ended)
    @rule()
    def end(self) -> None:
        async def work(connection: AsyncConnection) -> None:
            await begin_end(connection, self.run.run_id, "drawn")
            await filter_open(connection, self.run.run_id)

        self.transaction(work)
        self.ended = True

    # --- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def each_submission_is_one_group_in_one_state_with_its_history(self) -> None:
        rows = self.query(
            "SELECT g.state, g.seq, array_agg(t.to_state ORDER BY t.transition_id) AS path FROM groups g "
            "JOIN transitions t ON t.kind = 'group' AND t.entity_id = g.group_id WHERE g.run_id = :r GROUP BY g.group_id"
        )
        assert len(rows) == self.submitted
        for row in rows:
            path = [GroupState(state) for state in row.path]
            assert path[0] is GroupState.ACCEPTED and path[-1] == row.state
            assert all(b in GROUP_TRANSITIONS[a] for a, b in pairwise(path))
        seqs = sorted(row.seq for row in rows if row.seq is not None)
        assert seqs == list(range(len(seqs))), "positions are dense"
        paths = self.query(
            "SELECT array_agg(to_state ORDER BY transition_id) AS path FROM transitions WHERE kind = 'rollout' "
            "AND run_id = :r GROUP BY entity_id"
        )
        for row in paths:
            path_of = [RolloutState(state) for state in row.path]
            assert all(b in ROLLOUT_TRANSITIONS[a] for a, b in pairwise(path_of))

    @invariant()
    def no_group_is_in_two_batches_and_what_is_trained_is_in_a_committed_one(self) -> None:
        rows = self.query(
            "SELECT g.group_id, g.state, count(b.batch_id) AS n, max(b.state) AS batch FROM groups g "
            "LEFT JOIN batch_items i ON i.group_id = g.group_id AND NOT i.voided "
            "LEFT JOIN batches b ON b.batch_id = i.batch_id WHERE g.run_id = :r GROUP BY g.group_id"
        )
        for row in rows:
            assert row.n == (1 if row.state in ("taken", "trained") else 0)
            assert (row.state == "trained") == (row.batch == "committed")

    @invariant()
    def a_group_is_over_exactly_when_nothing_of_it_is_left_to_do(self) -> None:
        stuck = self.query(
            "SELECT 1 FROM groups g WHERE run_id = :r AND (state IN ('accepted', 'dispatched')) <> EXISTS "
            "(SELECT 1 FROM rollouts r WHERE r.group_id = g.group_id AND r.state NOT IN ('verified', 'lost'))"
        )
        assert stuck == []

    @invariant()
    def infrastructure_never_becomes_a_reward(self) -> None:
        rewarded = self.query(
            "SELECT 1 FROM rewards w JOIN rollouts r USING (rollout_id) WHERE w.run_id = :r AND "
            "(r.state <> 'verified' OR r.failure_class NOT IN ('completed', 'policy_failure')) AND NOT EXISTS "
            "(SELECT 1 FROM transitions t WHERE t.kind = 'rollout' AND t.entity_id = r.rollout_id AND t.from_state = 'verified')"
        )
        trained = self.query(
            "SELECT 1 FROM batch_rollouts b JOIN batches USING (batch_id) JOIN rollouts r USING (rollout_id) "
            "WHERE batches.run_id = :r AND batches.state <> 'voided' AND "
            "(r.state <> 'verified' OR r.failure_class NOT IN ('completed', 'policy_failure'))"
        )
        assert rewarded == [] and trained == []

    @invariant()
    def no_open_position_lies_below_the_floor(self) -> None:
        below = self.query(
            "SELECT 1 FROM groups g JOIN queue q USING (run_id) WHERE run_id = :r AND g.seq < q.floor_seq "
            "AND g.state IN ('dispatched', 'ready')"
        )
        assert below == []

    @invariant()
    def versions_are_one_line_of_the_batches_that_count(self) -> None:
        line = self.query(
            "SELECT version, parent, batch_no FROM policy_versions WHERE run_id = :r AND superseded_by IS NULL ORDER BY 1"
        )
        assert all(b.parent == a.version for a, b in pairwise(line))
        counted = self.query(
            "SELECT batch_no FROM batches WHERE run_id = :r AND state = 'committed' ORDER BY 1"
        )
        assert [row.batch_no for row in counted] == sorted({v.batch_no for v in line} - {None})

    @invariant()
    def every_claim_follows_from_the_history_before_it(self) -> None:
        rows = self.query(
            "SELECT transition_id, seq, to_state FROM transitions WHERE run_id = :r AND kind = 'group' AND seq IS NOT NULL"
        )
        claims = replay([Transition(row[0], row[1], GroupState(row[2])) for row in rows], WINDOW)
        assert all(claim.agrees for claim in claims)

    def teardown(self) -> None:
        """End the run: everything open is resolved, and the run can be over."""
        if not hasattr(self, "run"):
            return
        if not self.ended:
            self.end()
        for _ in range(2):
            self.claim(then="commit")
        assert self.transaction(lambda c: finish_end(c, self.run.run_id))
        assert self.query("SELECT 1 FROM groups WHERE run_id = :r AND NOT done") == []


@pytest.fixture
def machine(database_url: str) -> Iterator[type[PoolMachine]]:
    with asyncio.Runner() as runner:
        engine = bare_engine(database_url)
        PoolMachine.database = (runner, engine)
        yield PoolMachine
        runner.run(engine.dispose())


def test_any_order_of_events_keeps_the_promises_of_the_pool(machine: type[PoolMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=6,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
