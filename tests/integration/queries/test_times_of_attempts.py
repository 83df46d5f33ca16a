"""The times of everything in an attempt, from its rows alone: six calls at once on a rollout server of one slot, and a sandbox that dies."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.export.otlp_trace import Trace
from orchestrator.pool.runs import get_run
from orchestrator.queries.attempt_filters import AttemptFilters, Bound
from orchestrator.queries.attempts import page
from orchestrator.queries.rollouts import Rollout
from orchestrator.queries.rollouts import rollout as looked_at
from orchestrator.queries.spending import stages_of
from orchestrator.tasks.harbor import Task
from orchestrator.trajectory.waiting import covered
from tests.contract.rollout_server import running_server
from tests.integration.gateway.rig import Policies
from tests.integration.runner.rig import Rig, open_rig
from tests.integration.runner.test_runners import program_running

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("roles")]

Opens = Callable[..., AbstractAsyncContextManager[Rig]]
CROWD = "tests.integration.runner.scaffolds_at_work:Crowd"
CALLS = 8
TASK = Task.from_files(
    {
        "task.toml": b"[agent]\nmax_turns = 20\n",
        "instruction.md": b"Count.",
        "tests/test.sh": b"mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n",
    }
)
NEAR = 0.3  # seconds between two measurements of the same event: a message's way on a busy machine


@pytest.fixture(scope="module")
def server_url(policies: Policies) -> Iterator[str]:
    with running_server(policies.model, "--max-running-requests", "1") as server:
        yield server.url


@pytest.fixture
def opens(
    database_url: str, nats_server: EmbeddedNats, server_url: str, directory: Path, policies: Policies
) -> Opens:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Rig]:
        async with open_rig(
            database_url,
            nats_server.url,
            directory,
            policies.model,
            server_url=server_url,
            stage={"max_turns": 20},
        ) as rig:
            await rig.publish(policies.versions[0])
            rig.start_runner()
            rig.start_verifier()
            yield rig

    return opened


async def shown(rig: Rig, rollout: int) -> Rollout:
    async with rig.context.engine.connect() as connection:
        return await looked_at(connection, rig.context.run_id, rollout)


def bars(found: Rollout, kind: str) -> list[tuple[float, float]]:
    return [(bar.start, bar.end) for bar in found.bars if bar.kind == kind]


async def spans(rig: Rig) -> list[Any]:
    """The spans of its only attempt, in the form of an export to OpenTelemetry."""
    (now,) = await rig.rows("SELECT now() AS at")
    async with rig.context.engine.connect() as connection:
        run = await get_run(connection, rig.context.run)
        (attempt,) = await page(connection, run, AttemptFilters(), Bound(now.at), None)
    return list(Trace(trace_pb2, common_pb2, attempt, content=False).spans())


def in_true_order(found: list[Any]) -> None:
    """Every span within its parent's; the six calls after the first, and before the last."""
    by_id = {span.span_id: (span.start_time_unix_nano, span.end_time_unix_nano) for span in found}
    for span in found:
        if span.parent_span_id:
            start, end = by_id[span.parent_span_id]
            assert start <= span.start_time_unix_nano <= span.end_time_unix_nano <= end, span.name
    calls = [by_id[span.span_id] for span in found if span.name.startswith("chat ")]
    assert len(calls) == CALLS and calls[0][1] <= min(start for start, _ in calls[1:7])
    assert max(end for _, end in calls[1:7]) <= calls[7][0]


async def test_views_bars_and_spans_show_six_concurrent_calls_as_they_were(opens: Opens) -> None:
    async with opens() as rig:
        rollout = await rig.submit(TASK, scaffold=CROWD, pool="default")
        await rig.state(rollout, "verified")
        (attempt,) = await rig.attempts(rollout)
        assert attempt.failure_class == "completed", attempt.reason
        wall = (attempt.ended - attempt.started).total_seconds()
        (reported,) = await rig.rows(
            "SELECT sum(t_queue)::float8 AS queue, sum(t_gen)::float8 AS generation, sum(t_gap)::float8 AS gap FROM steps"
            " WHERE rollout_id = :id",
            id=rollout,
        )
        assert reported.queue > attempt.waiting_s, (
            "calls that wait at once: their seconds add up to more than the time"
        )
        assert 0 < attempt.generation_s <= attempt.agent_s
        assert attempt.generation_s <= reported.generation + NEAR
        assert attempt.agent_s + attempt.waiting_s <= wall and attempt.waiting_s <= attempt.queued_s
        (row,) = await rig.rows("SELECT * FROM rollout_summary WHERE rollout_id = :id", id=rollout)
        assert (row.generation_s, row.waiting_s) == (attempt.generation_s, attempt.waiting_s)
        stages = stages_of(wall, attempt.agent_s, attempt.queued_s, attempt.generation_s, attempt.waiting_s)
        assert sum(stages.values()) == pytest.approx(wall) and min(stages.values()) >= 0

        found = await shown(rig, rollout)
        generation, tools, queue = bars(found, "generation"), bars(found, "tool"), bars(found, "queue")
        assert len(generation) == CALLS and max(end for _, end in generation) <= wall
        assert covered(generation) == pytest.approx(attempt.generation_s, rel=0.2, abs=NEAR)
        assert (
            covered([*generation, *queue]) <= sum(end - start for start, end in [*generation, *queue]) - 1e-3
        )
        assert generation[0][1] <= tools[0][0] + NEAR, "a command lies after the reply that requested it"
        assert all(start >= tools[0][1] - NEAR for start, _ in queue[1:]), "and before the calls behind it"
        assert all(end <= tools[1][0] + NEAR for _, end in generation[:7])
        gaps = bars(found, "gap")
        assert covered(gaps) == pytest.approx(reported.gap, rel=0.2, abs=NEAR) and covered(gaps) >= 3.5
        in_true_order(await spans(rig))


async def test_an_attempt_that_goes_on_in_another_sandbox_keeps_the_times_of_its_first_calls(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rollout = await rig.submit(TASK, scaffold=CROWD, pool="default")
        await rig.until(
            "SELECT count(*) AS n FROM steps WHERE rollout_id = :id",
            lambda row: row.n == CALLS - 1,
            id=rollout,
        )
        for monitor in await program_running():
            os.kill(monitor, signal.SIGKILL)
        await rig.state(rollout, "verified")
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.epoch, attempt.steps) == ("completed", 2, CALLS)
        rows = await rig.rows(
            "SELECT epoch, t_gen, ended FROM steps WHERE rollout_id = :id ORDER BY idx", id=rollout
        )
        assert [row.epoch for row in rows] == [1] * 7 + [2]
        first = covered([(row.ended.timestamp() - row.t_gen, row.ended.timestamp()) for row in rows])
        assert attempt.generation_s == pytest.approx(first, rel=0.2, abs=NEAR), (
            "what was replayed counts as it was generated"
        )
        wall = (attempt.ended - attempt.started).total_seconds()
        assert attempt.agent_s <= wall

        found = await shown(rig, rollout)
        (resume,) = found.resumes
        again = resume.at - found.attempts[0].started
        generation = sorted(bars(found, "generation"))
        assert all(end <= again + NEAR for _, end in generation[:7]) and generation[7][0] > again
        starts = bars(found, "start")
        assert len(starts) == 2 and starts[1][0] >= again - NEAR and starts[1][1] <= generation[7][0]
        assert len(bars(found, "waiting")) == 2
        in_true_order(await spans(rig))
