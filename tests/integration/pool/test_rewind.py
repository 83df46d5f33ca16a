"""A rewind: exactly the groups that later batches used are free again, at their positions; versions and counts stay consistent."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import BacklogStageName, BatchState, GroupState, Purpose
from orchestrator.pool import batches
from orchestrator.pool.backlog import stages
from orchestrator.pool.batches import LiveBatch, NewVersion
from orchestrator.pool.dispatch import lock_queue
from orchestrator.pool.policy_versions import PolicyVersion, needed_checkpoints, newest_version, next_version
from orchestrator.pool.quarantine import quarantine, quarantined_in_a_row
from orchestrator.pool.rewind import FIRST, Rewound, rewind
from orchestrator.pool.runs import begin_end
from orchestrator.pool.tables import groups, policy_versions, queue
from orchestrator.queries.workload import CLAIMED
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.queue_policies import Windowed
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.audit.audited import AuditedRun
from tests.integration.pool.rig import counter, owed, small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

AUTHOR = builders.Author(turns=1)
P = 2


@dataclass(frozen=True, slots=True)
class Trained(AuditedRun):
    """A run whose groups were ready in the order of `seq`, and the operations on it."""

    async def ready(self, *names: str) -> None:
        for group_id in await builders.accepted(self.engine, self.run, names, size=2):
            await builders.dispatch(self.engine, self.run)
            await builders.finish(self.engine, self.run, group_id, AUTHOR, performances=(1.0, 0.0))

    async def claim(self) -> LiveBatch:
        batch: LiveBatch | None = await self.do(lambda c: batches.take(c, self.run.run_id, Windowed(2), P, 1))
        assert batch is not None
        return batch

    async def train(self, times: int = 1) -> None:
        for _ in range(times):
            batch = await self.claim()
            assert batch.state is BatchState.CLOSED

            async def commit(connection: Any, batch: LiveBatch = batch) -> bool:
                number = await next_version(connection, self.run.run_id)
                newest = await newest_version(connection, self.run.run_id)
                parent = newest.version if newest else None
                new = NewVersion(
                    version=number,
                    parent=parent,
                    path=f"/p/version-{number:06d}",
                    manifest_sha=f"{number:02x}",
                )
                return await batches.commit(
                    connection,
                    self.run.run_id,
                    self.run.name,
                    batch=batch,
                    new=new,
                    metrics=[{"loss": 0.0}],
                    subject="policy.run",
                )

            assert await self.do(commit)

    async def rewind(
        self, to_batch: int, there: Callable[[PolicyVersion], bool] = lambda version: True
    ) -> Rewound:
        rewound: Rewound = await self.do(
            lambda c: rewind(c, self.run.run_id, to_batch, "policy.run", "ada: it collapsed", there)
        )
        return rewound

    async def states(self) -> dict[int, str]:
        """State by queue position."""
        query = select(groups.c.seq, groups.c.state).where(groups.c.run_id == self.run.run_id)
        return {seq: state for seq, state in await self.do(lambda c: c.execute(query.order_by(groups.c.seq)))}

    async def versions(self) -> list[tuple[Any, ...]]:
        """(version, parent, batch, superseded by) in order."""
        table = policy_versions.c
        query = select(table.version, table.parent, table.batch_no, table.superseded_by).order_by(
            table.version
        )
        return [tuple(row) for row in await self.do(lambda c: c.execute(query))]

    async def in_batches(self) -> dict[int, list[int]]:
        """Positions by the number of their batch."""
        rows = await self.do(
            lambda c: c.execute(
                text(
                    "SELECT b.batch_no, array_agg(g.seq ORDER BY g.seq) FROM batches b JOIN batch_items i USING (batch_id) "
                    "JOIN groups g USING (group_id) WHERE b.state <> 'voided' AND NOT i.voided GROUP BY 1"
                )
            )
        )
        return {number: seqs for number, seqs in rows}


@pytest.fixture
async def trained(engine: AsyncEngine) -> Trained:
    """Batches 0 … 3 of positions 0 … 7, trained one after the other, and nothing else."""
    run = await builders.make_run(engine, small(capacity=10))
    made = Trained(engine, run)
    first = NewVersion(version=0, parent=None, path="/p/version-000000", manifest_sha="00")
    await made.do(lambda c: batches.publish(c, run.run_id, run.name, first, "policy.run", None))
    await made.ready(*"abcdefgh")
    await made.train(4)
    return made


async def test_a_group_that_a_rewind_gives_back_was_ready_when_its_last_member_was_verified(
    trained: Trained,
) -> None:
    earlier = (
        "UPDATE groups SET dispatched = dispatched - interval '2 hours', ready = ready - interval '2 hours'"
    )
    took = text("SELECT group_id, running_s FROM group_summary ORDER BY 1")
    await trained.do(lambda c: c.execute(text(earlier)))
    before = (await trained.do(lambda c: c.execute(took))).all()
    await trained.rewind(1)
    assert (await trained.do(lambda c: c.execute(took))).all() == before
    config = Config.from_json(trained.run.config)
    found = await trained.do(lambda c: stages(c, trained.run.run_id, config, QueueSettings.of(config)))
    (take,) = (stage for stage in found if stage.name == BacklogStageName.TAKE)
    assert take.open == 4 and take.oldest_s < 3600, "they wait since the rewind"
    await trained.train(1)
    until = datetime.now(UTC) + timedelta(hours=1)
    given = {"run": trained.run.run_id, "since": until - timedelta(days=1), "until": until, "within": "{(,)}"}
    assert await trained.do(lambda c: c.scalar(text(CLAIMED), given)) < 3600


async def test_exactly_the_groups_of_later_batches_are_free_again_at_their_positions(
    trained: Trained,
) -> None:
    done = await trained.rewind(1)
    assert done == Rewound(to_batch=1, batches=(2, 3), groups=4, superseded=(3, 4), version=5)
    assert await trained.states() == {n: "trained" if n < 4 else "ready" for n in range(8)}
    assert await trained.in_batches() == {0: [0, 1], 1: [2, 3]}
    assert await trained.do(lambda c: c.scalar(select(queue.c.floor_seq))) == 4
    await trained.audited()
    # The freed groups are the next to be taken, before the later ones.
    await trained.ready("i", "j")
    await trained.train(3)
    assert await trained.in_batches() == {n: [2 * n, 2 * n + 1] for n in range(5)}
    await trained.audited()


async def test_the_weights_of_the_batch_get_a_new_number_that_supersedes_the_later_ones(
    trained: Trained,
) -> None:
    await trained.rewind(1)
    await trained.train()
    assert await trained.versions() == [
        (0, None, None, None),
        (1, 0, 0, None),
        (2, 1, 1, None),
        (3, 2, 2, 5),
        (4, 3, 3, 5),
        (5, 2, 1, None),  # version 2 again
        (6, 5, 2, None),
    ]
    announced = [body for subject, body in await owed(trained.engine, trained.run) if subject == "policy.run"]
    again = announced[5]
    assert (again["version"], again["revision"], again["batch_no"]) == (5, 5, 1)
    assert (again["path"], again["manifest_sha"]) == ("/p/version-000002", "02")
    await trained.audited()


async def test_rewinds_may_follow_one_another_to_any_batch_that_counts(trained: Trained) -> None:
    await trained.rewind(2)  # version 5 is version 3
    await trained.train()  # version 6
    await trained.rewind(2)  # version 7 is version 5 is version 3
    await trained.rewind(0)  # version 8 is version 1
    await trained.train(2)
    assert (await trained.rewind(FIRST)).superseded == (1, 8, 9, 10)
    assert (await trained.versions())[-1] == (11, 0, None, None)
    assert await trained.states() == {n: "ready" for n in range(8)}
    assert await trained.do(lambda c: c.scalar(select(queue.c.floor_seq))) == 0
    await trained.train(4)
    await trained.audited()
    assert await counter(trained.engine, trained.run, "rewinds") == 4


async def test_a_batch_that_has_no_weights_yet_is_undone_without_a_new_version(trained: Trained) -> None:
    await trained.ready("i", "j", "k")
    closed = await trained.claim()
    before = await trained.versions()
    assert await trained.rewind(3) == Rewound(to_batch=3, batches=(4,), groups=2, superseded=(), version=None)
    assert await trained.versions() == before and (await trained.states())[8] == "ready"
    new = NewVersion(version=9, parent=4, path="/p/version-000009", manifest_sha="09")
    commit = lambda c: batches.commit(
        c, 1, trained.run.name, batch=closed, new=new, metrics=[{}], subject="policy.run"
    )
    assert not await trained.do(commit), "a trainer that trained it in the meantime has lost"
    assert (await trained.claim()).batch_id != closed.batch_id
    await trained.audited()


async def test_open_groups_keep_their_positions_and_admission_counts_what_is_free_as_outstanding(
    trained: Trained,
) -> None:
    await trained.ready("i")
    await builders.accepted(trained.engine, trained.run, ["j"], size=2)
    await builders.dispatch(trained.engine, trained.run)
    assert (await trained.claim()).taken == 1  # an open batch: i is in it
    await trained.rewind(2)
    states = await trained.states()
    assert (states[7], states[8], states[9]) == ("ready", "ready", "dispatched")
    counts = (await trained.do(lambda c: lock_queue(c, trained.run.run_id))).counts
    assert (counts.dispatched, counts.consumed, counts.resolved, counts.outstanding) == (10, 6, 0, 4)
    assert counts.committed_batches == 3
    await trained.audited()


async def test_it_is_refused_with_one_sentence_and_changes_nothing(trained: Trained) -> None:
    async def refused(to_batch: int, sentence: str, **more: Any) -> None:
        before = (await trained.states(), await trained.versions())
        with pytest.raises(ConfigurationError, match=sentence) as error:
            await trained.rewind(to_batch, **more)
        assert "\n" not in str(error.value)
        assert (await trained.states(), await trained.versions()) == before

    await refused(7, r"batch 7 does not count: choose from -1 \(the first weights\), 0, 1, 2, 3")
    await refused(3, "batch 3 is the last one: there is nothing to undo")
    kept = lambda version: version.version in (0, 3, 4)
    await refused(
        1, r"batch 1 \(version 2\) is pruned; choose from -1 \(the first weights\), 2, 3", there=kept
    )
    [evaluation] = await builders.accepted(
        trained.engine, trained.run, ["eval"], purpose=Purpose.EVAL, pinned_version=4
    )
    await refused(1, r"1 evaluations are not over yet, .*\(they pin version 4\): wait until they are scored")
    end = groups.update().where(groups.c.group_id == evaluation).values(state=GroupState.SCORED)
    await trained.do(lambda c: c.execute(end))
    await trained.do(lambda c: begin_end(c, trained.run.run_id, "test"))
    await refused(1, "run 'run' is ending: what it trained stays trained")


async def test_the_history_of_each_batch_keeps_the_person_and_the_reason(trained: Trained) -> None:
    await trained.rewind(1)
    rows = await trained.do(
        lambda c: c.execute(
            text(
                "SELECT b.batch_no, t.from_state, t.reason FROM transitions t JOIN batches b ON b.batch_id = t.entity_id "
                "WHERE t.kind = 'batch' AND t.to_state = 'voided' ORDER BY 1"
            )
        )
    )
    reason = "rewind to batch 1: ada: it collapsed"
    assert [tuple(row) for row in rows] == [(2, "committed", reason), (3, "committed", reason)]


async def test_quarantines_in_a_row_are_counted_from_the_rewind(trained: Trained) -> None:
    async def bad(*names: str) -> int:
        await trained.ready(*names)
        batch = await trained.claim()
        assert await trained.do(lambda c: quarantine(c, trained.run.run_id, batch.batch_id, "bad"))
        count: int = await trained.do(lambda c: quarantined_in_a_row(c, trained.run.run_id))
        return count

    assert await bad("bad 1", "bad 2") == 1
    await trained.ready("i", "j")
    await trained.train()
    assert await bad("bad 3", "bad 4") == 1 and await bad("bad 5", "bad 6") == 2
    await trained.rewind(3)  # groups quarantined between the batches that it undoes are not in a row either
    assert await trained.do(lambda c: quarantined_in_a_row(c, trained.run.run_id)) == 0
    states = await trained.states()
    assert [states[n] for n in range(8, 16)] == ["filtered"] * 2 + ["ready"] * 2 + ["filtered"] * 4
    await trained.audited()


async def test_the_directory_of_weights_that_were_published_again_is_kept(trained: Trained) -> None:
    await trained.rewind(1)
    kept = await trained.do(lambda c: needed_checkpoints(c, trained.run.run_id, 2))
    assert kept == {Path(f"/p/version-{n:06d}").name for n in (0, 1, 2)}
