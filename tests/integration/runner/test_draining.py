"""Draining: a draining process takes no new work and finishes its current work. If it is stopped then, it loses nothing; if the order is
withdrawn, it works again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import aiohttp
import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import DrainKind
from orchestrator.gateway_client import GatewayAdmin, GatewayDrains, SessionBudget
from orchestrator.pool.backlog import stages
from orchestrator.pool.draining import Drainable, drain, drainables, undrain
from orchestrator.pool.heartbeats import present
from orchestrator.pool.stall_causes import eased, stall_causes, stuck
from orchestrator.runner.gateways import Gateways
from orchestrator.runner.rollout_runner import serve_rollouts
from orchestrator.runtime.watchdog import WatchdogSettings, watching
from orchestrator.scheduling.admission import QueueSettings
from tests.integration.runner.rig import PATIENCE_S, Opens, Rig, a_task, runs, says
from tests.integration.runner.test_runners import PASSES
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]

WATCHDOG = WatchdogSettings(no_progress_s=6.0, lag_s=60.0)  # a heartbeat every half second
SLOW = a_task(runs("sleep 1.5; echo done > out"), says("done"))


async def as_process(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """`work` with heartbeats of its own, like a process of that name."""
    with watching(name, WATCHDOG):
        await work()


async def ordered(rig: Rig, kind: DrainKind, name: str, *, undo: bool = False) -> Drainable:
    return await order(rig.context.engine, rig.context.run_id, kind, name, undo=undo)


async def order(
    engine: AsyncEngine, run_id: int, kind: DrainKind, name: str, *, undo: bool = False, last: bool = False
) -> Drainable:
    """Give an order as a person would."""
    limit = WATCHDOG.no_progress_s
    async with engine.begin() as connection:
        if undo:
            return await undrain(connection, run_id, kind, name, "me@here", "done", no_progress_s=limit)
        return await drain(
            connection, run_id, kind, name, "me@here", "an upgrade", no_progress_s=limit, last=last
        )


DRAINS = (503, "it drains: it opens no new sessions, and goes on with those it has")


async def ready(url: str) -> tuple[int, str]:
    """A gateway's answer to a cluster's readiness probe."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
        return response.status, (await response.text()).strip()


async def until_state(engine: AsyncEngine, run_id: int, kind: DrainKind, wanted: str) -> Drainable:
    """Wait until the only process of a kind, or the draining one, is in this state."""
    found: list[Drainable] = []

    async def those() -> list[Drainable]:
        nonlocal found
        async with engine.connect() as connection:
            of_all = await drainables(connection, run_id, WATCHDOG.no_progress_s)
        found = [one for one in of_all if one.kind == kind]
        return [one for one in found if one.state == wanted]

    try:
        return (await eventually(those, within_s=PATIENCE_S, every_s=0.05))[0]
    except TimeoutError:
        raise AssertionError(f"never {wanted}: {found}") from None


async def test_a_drained_runner_has_finished_what_it_had_and_killed_then_it_causes_no_new_attempt(
    opens: Opens,
) -> None:
    async with opens() as rig, rig.runner_process(no_progress_s=WATCHDOG.no_progress_s) as process:
        engine, run_id = rig.context.engine, rig.context.run_id
        await until_state(engine, run_id, DrainKind.RUNNER, "working")
        running = await rig.submit(SLOW)
        await rig.state(running, "running")
        assert (await ordered(rig, DrainKind.RUNNER, "runner")).left is None
        waits = await rig.until(
            "SELECT holds->>'self' AS left FROM processes WHERE process = 'runner'", lambda row: row.left
        )
        assert waits.left == "1"  # it knows the order; its work continues
        later = await rig.submit(PASSES)
        drained = await until_state(engine, run_id, DrainKind.RUNNER, "drained")
        assert drained.sentence == "the runner runner is drained"
        await rig.state(running, "finished")
        async with engine.connect() as connection:
            processes = await present(connection, run_id)
        assert stuck(processes, WATCHDOG.no_progress_s) == []
        process.kill()
        process.wait()
        rig.start_another_runner()
        await rig.state(later, "finished")
        for rollout in (running, later):
            (attempt,) = await rig.attempts(rollout)
            assert (attempt.attempt, attempt.epoch, attempt.failure_class) == (1, 1, "completed")


async def test_a_runner_that_died_while_it_drained_takes_nothing_when_it_comes_back_and_one_that_was_stopped_does(
    opens: Opens,
) -> None:
    async with opens() as rig:
        engine, run_id = rig.context.engine, rig.context.run_id
        async with rig.runner_process(no_progress_s=WATCHDOG.no_progress_s) as process:
            await until_state(engine, run_id, DrainKind.RUNNER, "working")
            await ordered(rig, DrainKind.RUNNER, "runner")
            await until_state(engine, run_id, DrainKind.RUNNER, "drained")
            process.kill()
            process.wait()
        stop = anyio.CancelScope()

        async def until_stopped() -> None:
            with stop:
                await as_process("runner", partial(serve_rollouts, rig.settings))

        rig.tasks.start_soon(until_stopped)
        pid = "SELECT pid, holds->>'self' AS left FROM processes WHERE process = 'runner'"
        await rig.until(pid, lambda row: row.pid != process.pid and row.left == "0")
        rollout = await rig.submit(PASSES)
        await rig.until("SELECT count(*) AS n FROM outbox", lambda row: row.n == 0)  # it is assigned
        await rig.until(pid, lambda row: row.left == "0")
        assert (await rig.state(rollout, "queued")).lease_epoch == 1
        stop.cancel()
        await rig.until(
            "SELECT stopped, draining FROM processes", lambda row: row.stopped and row.draining is None
        )
        rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
        await rig.state(rollout, "finished")
        assert len(await rig.attempts(rollout)) == 1


async def test_while_every_runner_drains_no_process_is_blamed_and_one_whose_drain_is_cancelled_takes_waiting_work(
    opens: Opens,
) -> None:
    async with opens() as rig:
        engine, run_id = rig.context.engine, rig.context.run_id
        rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
        await until_state(engine, run_id, DrainKind.RUNNER, "working")
        await ordered(rig, DrainKind.RUNNER, "runner")
        await until_state(engine, run_id, DrainKind.RUNNER, "drained")
        rollout = await rig.submit(PASSES)
        await rig.until(
            "SELECT state, extract(epoch FROM clock_timestamp() - changed) AS age FROM rollouts",
            lambda row: row.state == "queued" and row.age > 0.2,
        )
        async with engine.connect() as connection:
            # Heartbeat of now: with this limit it would otherwise be blamed for its silence between two heartbeats.
            processes = [replace(one, silent_s=0.0) for one in await present(connection, run_id)]
            found = await stages(connection, run_id, rig.context.config, QueueSettings.of(rig.context.config))
        lenient = eased(found, processes)
        assert stall_causes(lenient, processes, 0.1).get("lease") is None
        (lease,) = [stage for stage in lenient if stage.name == "lease"]
        assert lease.held == "every runner drains: `penstock drain runner NAME --undo` lets one work again"
        await ordered(rig, DrainKind.RUNNER, "runner", undo=True)
        await rig.state(rollout, "finished")
        assert [tuple(row) for row in await rig.rows("SELECT what, target, reason FROM actions")] == [
            ("drain", "runner runner", "an upgrade"),
            ("undrain", "runner runner", "done"),
        ]


async def test_a_draining_gateway_lets_its_sessions_end_and_its_runner_begins_nothing_until_it_works_again(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching("gateway", WATCHDOG):
        async with opens() as rig:
            engine, run_id = rig.context.engine, rig.context.run_id
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            running = await rig.submit(SLOW)
            await rig.state(running, "running")
            await rig.until("SELECT count(*) AS n FROM sessions", lambda row: row.n == 1)
            await ordered(rig, DrainKind.GATEWAY, "gateway")
            await rig.until(
                "SELECT holds->>'self' AS left FROM processes WHERE process = 'gateway'",
                lambda row: row.left is not None,
            )
            assert await ready(rig.settings.gateway_url) == DRAINS  # and its work continues there, see below
            later = await rig.submit(PASSES)
            await until_state(engine, run_id, DrainKind.GATEWAY, "drained")
            await rig.state(running, "finished")
            await rig.state(later, "queued")
            # A runner whose question was not answered in time leases the rollout, and gives it back.
            before = await rig.attempts(later)
            assert {attempt.failure_class for attempt in before} <= {"cancelled"}
            secret = rig.settings.gateway_secret.read_text().strip()
            async with GatewayAdmin(rig.settings.gateway_url, secret) as admin:
                with pytest.raises(GatewayDrains, match="opens no new session"):
                    await admin.open_session(
                        run=rig.context.run,
                        rollout=later,
                        attempt=1,
                        epoch=1,
                        budget=SessionBudget(max_turns=4, max_context=1024),
                    )

            async def nothing_known(gateways: Gateways) -> None:
                return None

            # A runner that does not know the order yet leases work that it cannot start: it gives the work back, which does not count as a try.
            with monkeypatch.context() as patched:
                patched.setattr(Gateways, "why_closed", nothing_known)
                await rig.until(
                    "SELECT count(*) AS n FROM attempts WHERE rollout_id = :id AND failure_class = 'cancelled'",
                    lambda row: row.n > len(before),
                    id=later,
                )
            await ordered(rig, DrainKind.GATEWAY, "gateway", undo=True)
            await rig.state(later, "finished")
            assert await ready(rig.settings.gateway_url) == (200, "ok")
            *given_back, last = await rig.attempts(later)
            assert {attempt.failure_class for attempt in given_back} == {"cancelled"}
            assert last.failure_class == "completed"
            (once,) = await rig.attempts(running)
            assert once.failure_class == "completed"


async def test_who_is_not_known_is_refused_with_those_who_are(opens: Opens) -> None:
    async with opens() as rig:
        with pytest.raises(ConfigurationError, match=r"this run has no gateway 'gateway'; known: none"):
            await ordered(rig, DrainKind.GATEWAY, "gateway")
        async with rig.context.engine.begin() as connection:
            for host in ("a", "b"):
                await connection.exec_driver_sql(
                    f"INSERT INTO processes (run_id, host, process, pid, loops) VALUES ({rig.context.run_id}, '{host}', 'runner-2', 7, '[]')"
                )
        with pytest.raises(ConfigurationError, match=r"no runner 'runner-3'; known: runner-2@a, runner-2@b"):
            await ordered(rig, DrainKind.RUNNER, "runner-3")
        with pytest.raises(
            ConfigurationError, match="2 hosts have a runner 'runner-2': say which, runner-2@a or"
        ):
            await ordered(rig, DrainKind.RUNNER, "runner-2")
        with pytest.raises(ConfigurationError, match="the runner runner-2@b does not drain"):
            await ordered(rig, DrainKind.RUNNER, "runner-2@b", undo=True)
        answer = await ordered(rig, DrainKind.RUNNER, "runner-2@b")
        assert answer.sentence == "the runner runner-2@b was ordered to drain and has not answered yet"
        assert (
            await ordered(rig, DrainKind.RUNNER, "runner-2@b")
        ).draining  # a repeated order changes nothing
        assert len(await rig.rows("SELECT action_id FROM actions")) == 1
