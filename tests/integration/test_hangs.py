"""The two famous hangs, on the real loops: a dead collector behind an empty buffer, and a worker whose error nobody surfaced.

Both leave every process alive and every log quiet. Here an alarm names loop, item and reason; 3 s stand for the 45 s of the default. Each
alarm rings when the settings say so: one by lateness after the limit and two looks, one about a loop that has ended after its process's next
heartbeat and two looks; never after as much as twice the limit.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import nats
import pytest
from structlog.testing import capture_logs

from orchestrator.bus import subjects
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.flow.assignments import Assignments
from orchestrator.flow.overseer import LOOKS, Overseer
from orchestrator.flow.rollout_runner import RolloutRunner, serve_rollouts
from orchestrator.pool.culprits import Culprit, stuck
from orchestrator.pool.leases import Lease
from orchestrator.pool.presence import BEATS, announced, present
from orchestrator.watchdog import WatchdogSettings, watching
from tests.integration.runner_rig import Rig
from tests.integration.test_runners import PASSES, Opens, directory, model, opens

__all__ = ["directory", "model", "opens"]
pytestmark = [pytest.mark.services, pytest.mark.anyio]

NO_PROGRESS_S = 3.0
LOOK_S, BEAT_S = NO_PROGRESS_S / LOOKS, NO_PROGRESS_S / BEATS
LOAD_S = 2.0  # so much later may an alarm ring where the machine is busy with other things, beside what its looks took
PATIENCE_S = 60.0  # that anything comes at all
WATCHDOG = WatchdogSettings(no_progress_s=NO_PROGRESS_S, lag_s=60.0)


async def as_process(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """`work` under a watchdog of its own, as a process of that name has it."""
    with watching(name, WATCHDOG):
        await work()


@asynccontextmanager
async def overseen(rig: Rig) -> AsyncIterator[Overseer]:
    """The orchestrator's own loops are there already; here is who looks, and says that it lives."""
    with watching("orchestrator", WATCHDOG):
        async with announced(rig.flow.engine, rig.flow.run_id):
            yield Overseer(rig.flow)


async def until_named(overseer: Overseer, stage: str, *, within_s: float, **wanted: str) -> Culprit:
    """Look until an alarm rings for a stage, with a culprit of these properties: at most `within_s` and two looks after this was called."""
    seen: Any = None
    called, longest = time.monotonic(), 0.0
    try:
        with anyio.fail_after(PATIENCE_S):
            while True:
                began = time.monotonic()
                seen = (await overseer.look()).get(stage)
                now = time.monotonic()
                longest = max(longest, now - began)
                if seen is not None and all(getattr(seen, key) == value for key, value in wanted.items()):
                    assert isinstance(seen, Culprit)
                    assert now - called <= within_s + 2 * (LOOK_S + longest) + LOAD_S
                    return seen
                await anyio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"no alarm for {stage} with {wanted}: {seen}") from None


async def until_waits(rig: Rig) -> None:
    """Wait until a runner says that it waits for assignments."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            async with rig.flow.engine.connect() as connection:
                found = await present(connection, rig.flow.run_id)
            loops = [loop for process in found if process.kind == "runner" for loop in process.loops]
            if any(loop.name == "rollouts eval" and loop.waits_for == "assignments" for loop in loops):
                return
            await anyio.sleep(0.05)


async def until_taken(rig: Rig, overseer: Overseer, rollout: int) -> None:
    """Look until somebody has leased a rollout."""
    with anyio.fail_after(PATIENCE_S):
        while await rig.rows(
            "SELECT 1 FROM rollouts WHERE rollout_id = :id AND state = 'queued'", id=rollout
        ):
            await overseer.look()
            await anyio.sleep(LOOK_S)


def lines(logs: list[Any], event: str, **wanted: str) -> list[Any]:
    return [
        line for line in logs if line["event"] == event and all(line.get(k) == v for k, v in wanted.items())
    ]


async def test_a_runner_that_lives_while_its_loop_is_dead_is_named_although_nobody_waits_for_it(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer waits on an empty queue, the runner's process is fine, and nothing is ever produced again."""
    serve, died = Assignments._serve, anyio.Event()

    async def dies_quietly(self: Assignments, consumer: Any, tasks: Any) -> None:
        with suppress(RuntimeError):
            async with self._worker.bus.subscribe(consumer, batch=1) as arriving:
                (delivery,) = await arriving.take(1)
                await delivery.ack()  # and with it the assignment is lost
                died.set()
                raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(Assignments, "_serve", dies_quietly)
    with capture_logs() as logs:
        async with opens() as rig, overseen(rig) as overseer:
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            rollout = await rig.submit(PASSES)
            with anyio.fail_after(PATIENCE_S):
                await died.wait()
            found = await until_named(
                overseer, "lease", within_s=BEAT_S, process="runner", loop="rollouts eval"
            )
            assert found.item == f"rollout {rollout}"
            assert "loop rollouts eval has ended (it returned)" in found.sentence
            (line,) = lines(logs, "stage.stuck", stage="lease", at_process="runner")
            assert (line["loop"], line["item"]) == ("rollouts eval", f"rollout {rollout}")
            assert (
                lines(logs, "watchdog.stuck", process="runner", loop="rollouts eval")[0]["ended"]
                == "it returned"
            )
            # A new process, as its supervisor starts one: the reminder reaches it, and the work is done.
            monkeypatch.setattr(Assignments, "_serve", serve)
            rig.start_another_runner()
            await until_taken(rig, overseer, rollout)


async def test_an_assignment_that_was_lost_on_its_way_is_named_and_owed_again(
    opens: Opens, nats_server: EmbeddedNats
) -> None:
    async with opens() as rig, overseen(rig) as overseer:
        rollout = await rig.submit(PASSES)
        await rig.state(rollout, "queued")
        await rig.until(
            "SELECT count(*) AS n FROM outbox", lambda row: row.n == 0
        )  # its assignment is on the bus
        client = await nats.connect(nats_server.url)
        try:
            subject = subjects.work_rollout(rig.flow.run, "eval")
            await client.jetstream().purge_stream("WORK", subject=subject)
        finally:
            await client.close()
        rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
        with capture_logs() as logs:
            found = await until_named(
                overseer, "lease", within_s=NO_PROGRESS_S, process="runner", waits_for="assignments"
            )
            assert found.stage.oldest_s > NO_PROGRESS_S, "not before it is late"
            assert found.item == f"rollout {rollout}"
            assert "never reached it" in found.sentence
            assert lines(logs, "assignments.owed_again")
        await until_taken(rig, overseer, rollout)


async def test_no_runner_at_all_is_named_as_that(opens: Opens) -> None:
    async with opens() as rig, overseen(rig) as overseer:
        await rig.state(await rig.submit(PASSES), "queued")
        found = await until_named(overseer, "lease", within_s=NO_PROGRESS_S, process="runner", loop="")
        assert found.stage.oldest_s > NO_PROGRESS_S, "not before it is late"
        assert found.sentence == "no runner is running: start one"


async def test_a_worker_whose_error_nobody_surfaced_is_named_with_the_error(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is free again, the task group knows of no error, and the rollout is nobody's."""
    hold, failed = Assignments._hold, anyio.Event()

    async def swallowed(self: Assignments, held: Lease) -> None:
        with suppress(RuntimeError):
            await hold(self, held)

    async def attempt(self: RolloutRunner, lease: Lease) -> Any:
        failed.set()
        raise RuntimeError("the tokenizer has no such token")

    monkeypatch.setattr(Assignments, "_hold", swallowed)
    monkeypatch.setattr(RolloutRunner, "attempt", attempt)
    with capture_logs() as logs:
        async with opens(lease_ttl_s=30.0) as rig, overseen(rig) as overseer:
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            rollout = await rig.submit(PASSES)
            with anyio.fail_after(PATIENCE_S):
                await failed.wait()
            found = await until_named(overseer, "run", within_s=BEAT_S, process="runner", loop="attempt")
            assert found.item == f"rollout {rollout}"
            assert "RuntimeError: the tokenizer has no such token" in found.sentence
            (line, *_) = lines(logs, "watchdog.stuck", process="runner", loop="attempt")
            assert line["item"] == f"rollout {rollout}"
            assert line["ended"] == "RuntimeError: the tokenizer has no such token"
            async with rig.flow.engine.connect() as connection:
                said = stuck(await present(connection, rig.flow.run_id), NO_PROGRESS_S)
            assert said == [found.sentence]


async def test_a_run_that_goes_well_rings_no_alarm(opens: Opens) -> None:
    with capture_logs() as logs:
        async with opens() as rig, overseen(rig) as overseer:
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            await until_waits(rig)  # a rollout that is late while the runner still starts would rightly ring
            rollout = await rig.submit(PASSES)
            with anyio.fail_after(PATIENCE_S):
                while not (await rig.rows("SELECT 1 FROM rollouts WHERE state = 'finished'")):
                    assert await overseer.look() == {}
                    await anyio.sleep(0.05)
            assert await rig.state(rollout, "finished")
        assert lines(logs, "stage.stuck") == lines(logs, "watchdog.stuck") == []
