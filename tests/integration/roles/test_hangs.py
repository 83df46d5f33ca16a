"""The two famous hangs, on the real loops: a dead collector behind an empty buffer, and a worker whose error was never surfaced.

Both leave every process alive and every log quiet. Here an alarm names loop, item and reason; 3 s replace the 45 s of the default. Each
alarm rings when the settings imply it: at the second look after an item is late for longer than the limit, or after a heartbeat has reported
that a loop ended. Looks are counted, so that a pause of the machine delays an alarm, and nothing fails.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import nats
import pytest
from structlog.testing import capture_logs

from orchestrator.bus import subjects
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.backlog import stages
from orchestrator.pool.heartbeats import LoopReport, present, send_heartbeats
from orchestrator.pool.leases import Lease
from orchestrator.pool.stall_causes import StallCause, stuck
from orchestrator.roles.stall_detector import CHECKS_PER_NO_PROGRESS, StallDetector
from orchestrator.runner.assignments import Assignments
from orchestrator.runner.rollout_runner import RolloutRunner, serve_rollouts
from orchestrator.runtime.watchdog import WatchdogSettings, watching
from orchestrator.scheduling.admission import QueueSettings
from tests.integration.runner.fixtures import opens
from tests.integration.runner.rig import Opens, Rig
from tests.integration.runner.test_runners import PASSES
from tests.waiting import eventually

__all__ = ["opens"]
pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.tier("processes")]

NO_PROGRESS_S = 3.0
POLL_INTERVAL_S = NO_PROGRESS_S / CHECKS_PER_NO_PROGRESS
RINGS_AT = 2  # the look, counted from the first one that can see the cause
PATIENCE_S = 60.0  # until anything comes at all
WATCHDOG = WatchdogSettings(no_progress_s=NO_PROGRESS_S, lag_s=60.0)


async def as_process(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """`work` under a watchdog of its own, like a process of that name."""
    with watching(name, WATCHDOG):
        await work()


@asynccontextmanager
async def overseen(rig: Rig) -> AsyncIterator[StallDetector]:
    """The orchestrator's own loops exist already; this adds the detector and the heartbeats."""
    with watching("orchestrator", WATCHDOG):
        async with send_heartbeats(rig.context.engine, rig.context.run_id):
            yield StallDetector(rig.context)


async def loop_has_ended(rig: Rig, process: str, loop: str) -> bool:
    """Whether a fresh heartbeat of a process reports that its loop has ended."""
    return any(each.name == loop and each.ended for each in await loops_of(rig, process))


async def item_is_late(rig: Rig, stage: str) -> bool:
    """Whether the oldest item of a stage is older than the limit, and so is the orchestrator."""
    async with rig.context.engine.connect() as connection:
        reports = await present(connection, rig.context.run_id)
        open_stages = await stages(
            connection, rig.context.run_id, rig.context.config, QueueSettings.of(rig.context.config)
        )
    up_s = min((each.up_s for each in reports if each.kind == "orchestrator"), default=0.0)
    return any(min(each.oldest_s, up_s) > NO_PROGRESS_S for each in open_stages if each.name == stage)


async def is_late_at_an_idle_runner(rig: Rig) -> bool:
    return await item_is_late(rig, "lease") and await waits(rig)


async def until_named(
    detector: StallDetector, stage: str, *, once: Callable[[], Awaitable[bool]], **wanted: str
) -> StallCause:
    """Look until an alarm rings for a stage, with a cause of these properties: at the second look in a row that begins after `once` holds."""
    seen: Any = None
    looks = 0

    async def look() -> Any:
        nonlocal seen, looks
        looks = looks + 1 if await once() else 0
        seen = (await detector.check()).get(stage)
        if seen is None or any(getattr(seen, key) != value for key, value in wanted.items()):
            assert looks < RINGS_AT, f"no alarm for {stage} with {wanted} at look {looks}: {seen}"
            return None
        return seen

    try:
        found = await eventually(
            look, lambda found: found is not None, within_s=PATIENCE_S, every_s=POLL_INTERVAL_S
        )
        assert isinstance(found, StallCause)
        return found
    except TimeoutError:
        raise AssertionError(f"no alarm for {stage} with {wanted}: {seen}") from None


async def loops_of(rig: Rig, process: str) -> list[LoopReport]:
    """The loops in the fresh heartbeats of a kind of process."""
    async with rig.context.engine.connect() as connection:
        found = await present(connection, rig.context.run_id)
    fresh = [each for each in found if each.kind == process and each.silent_s <= NO_PROGRESS_S]
    return [loop for each in fresh for loop in each.loops]


async def waits(rig: Rig) -> bool:
    """Whether a runner reports that it waits for assignments."""
    loops = await loops_of(rig, "runner")
    return any(loop.name == "rollouts eval" and loop.waits_for == "assignments" for loop in loops)


async def until_waits(rig: Rig) -> None:
    """Wait until a runner reports that it waits for assignments."""
    await eventually(partial(waits, rig), within_s=PATIENCE_S, every_s=0.05)


async def until_taken(rig: Rig, detector: StallDetector, rollout: int) -> None:
    """Look until a runner has leased a rollout."""
    query = "SELECT 1 FROM rollouts WHERE rollout_id = :id AND state = 'queued'"

    async def taken() -> bool:
        if not await rig.rows(query, id=rollout):
            return True
        await detector.check()
        return False

    await eventually(taken, within_s=PATIENCE_S, every_s=POLL_INTERVAL_S)


def lines(logs: list[Any], event: str, **wanted: str) -> list[Any]:
    return [
        line for line in logs if line["event"] == event and all(line.get(k) == v for k, v in wanted.items())
    ]


async def test_a_live_runner_with_a_dead_loop_is_named_although_nothing_waits_for_it(
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
                raise RuntimeError("an unexpected error")

    monkeypatch.setattr(Assignments, "_serve", dies_quietly)
    with capture_logs() as logs:
        async with opens() as rig, overseen(rig) as detector:
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            rollout = await rig.submit(PASSES)
            with anyio.fail_after(PATIENCE_S):
                await died.wait()
            ended = partial(loop_has_ended, rig, "runner", "rollouts eval")
            found = await until_named(detector, "lease", once=ended, process="runner", loop="rollouts eval")
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
            await until_taken(rig, detector, rollout)


async def test_an_assignment_that_was_lost_on_its_way_is_named_and_owed_again(
    opens: Opens, nats_server: EmbeddedNats
) -> None:
    async with opens() as rig, overseen(rig) as detector:
        rollout = await rig.submit(PASSES)
        await rig.state(rollout, "queued")
        # Its assignment is on the bus.
        await rig.until("SELECT count(*) AS n FROM outbox", lambda row: row.n == 0)
        client = await nats.connect(nats_server.url)
        try:
            subject = subjects.work_rollout(rig.context.run, "eval")
            await client.jetstream().purge_stream("WORK", subject=subject)
        finally:
            await client.close()
        rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
        await until_waits(rig)
        with capture_logs() as logs:
            late = partial(is_late_at_an_idle_runner, rig)
            found = await until_named(detector, "lease", once=late, process="runner", waits_for="assignments")
            assert found.stage.oldest_s > NO_PROGRESS_S, "not before it is late"
            assert found.item == f"rollout {rollout}"
            assert "never reached it" in found.sentence
            assert lines(logs, "assignments.resent")
        await until_taken(rig, detector, rollout)


async def test_no_runner_at_all_is_named_as_that(opens: Opens) -> None:
    async with opens() as rig, overseen(rig) as detector:
        await rig.state(await rig.submit(PASSES), "queued")
        late = partial(item_is_late, rig, "lease")
        found = await until_named(detector, "lease", once=late, process="runner", loop="")
        assert found.stage.oldest_s > NO_PROGRESS_S, "not before it is late"
        assert found.sentence == "no runner is running: start one"


async def test_a_worker_with_an_unreported_error_is_named_with_the_error(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is free again, the task group knows of no error, and the rollout has no owner."""
    hold, failed = Assignments._hold, anyio.Event()

    async def swallowed(self: Assignments, held: Lease) -> None:
        with suppress(ServiceError):
            await hold(self, held)

    async def attempt(self: RolloutRunner, lease: Lease) -> Any:
        failed.set()
        raise ServiceError("the disk of the tokenizer is away")

    monkeypatch.setattr(Assignments, "_hold", swallowed)
    monkeypatch.setattr(RolloutRunner, "attempt", attempt)
    with capture_logs() as logs:
        async with opens(lease_ttl_s=30.0) as rig, overseen(rig) as detector:
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            rollout = await rig.submit(PASSES)
            with anyio.fail_after(PATIENCE_S):
                await failed.wait()
            ended = partial(loop_has_ended, rig, "runner", "attempt")
            found = await until_named(detector, "run", once=ended, process="runner", loop="attempt")
            assert found.item == f"rollout {rollout}"
            assert "ServiceError: the disk of the tokenizer is away" in found.sentence
            (line, *_) = lines(logs, "watchdog.stuck", process="runner", loop="attempt")
            assert line["item"] == f"rollout {rollout}"
            assert line["ended"] == "ServiceError: the disk of the tokenizer is away"
            async with rig.context.engine.connect() as connection:
                sentences = stuck(await present(connection, rig.context.run_id), NO_PROGRESS_S)
            assert sentences == [found.sentence]


async def test_a_run_that_goes_well_rings_no_alarm(opens: Opens) -> None:
    with capture_logs() as logs:
        async with opens() as rig, overseen(rig) as detector:
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            await until_waits(rig)  # a rollout that is late while the runner still starts would rightly ring
            rollout = await rig.submit(PASSES)

            async def finished() -> bool:
                if await rig.rows("SELECT 1 FROM rollouts WHERE state = 'finished'"):
                    return True
                assert await detector.check() == {}
                return False

            await eventually(finished, within_s=PATIENCE_S, every_s=0.05)
            assert await rig.state(rollout, "finished")
        assert lines(logs, "stage.stuck") == lines(logs, "watchdog.stuck") == []
