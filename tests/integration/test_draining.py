"""Draining: who is asked to takes nothing new and finishes what it has; stopped then, it loses nothing; asked no more, it works again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import aiohttp
import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.flow.dispatcher import queue_settings
from orchestrator.flow.gateways import Gateways
from orchestrator.flow.rollout_runner import serve_rollouts
from orchestrator.gateway_client import Budget, GatewayAdmin, GatewayDrains
from orchestrator.pool.culprits import culprits, eased, stuck
from orchestrator.pool.draining import Drainable, Kind, drain, drainables, undrain
from orchestrator.pool.presence import present
from orchestrator.pool.stages import stages
from orchestrator.watchdog import WatchdogSettings, watching
from tests.integration.runner_rig import PATIENCE_S, Rig, a_task, runs, says
from tests.integration.test_runners import PASSES, Opens, directory, model, opens

__all__ = ["directory", "model", "opens"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]

WATCHDOG = WatchdogSettings(no_progress_s=6.0, lag_s=60.0)  # a heartbeat every half second
SLOW = a_task(runs("sleep 1.5; echo done > out"), says("done"))


async def as_process(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """`work` with heartbeats of its own, as a process of that name has them."""
    with watching(name, WATCHDOG):
        await work()


async def ordered(rig: Rig, kind: Kind, name: str, *, undo: bool = False) -> Drainable:
    return await order(rig.flow.engine, rig.flow.run_id, kind, name, undo=undo)


async def order(
    engine: AsyncEngine, run_id: int, kind: Kind, name: str, *, undo: bool = False, last: bool = False
) -> Drainable:
    """What a person says."""
    limit = WATCHDOG.no_progress_s
    async with engine.begin() as connection:
        if undo:
            return await undrain(connection, run_id, kind, name, "me@here", "done", no_progress_s=limit)
        return await drain(
            connection, run_id, kind, name, "me@here", "an upgrade", no_progress_s=limit, last=last
        )


DRAINS = (503, "it drains: it opens no new sessions, and goes on with those it has")


async def ready(url: str) -> tuple[int, str]:
    """What a cluster's readiness probe is told by a gateway."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
        return response.status, (await response.text()).strip()


async def until_state(engine: AsyncEngine, run_id: int, kind: Kind, wanted: str) -> Drainable:
    """Wait until the only one of a kind, or the one that drains, is in this state."""
    found: list[Drainable] = []
    try:
        with anyio.fail_after(PATIENCE_S):
            while True:
                async with engine.connect() as connection:
                    found = [
                        one
                        for one in await drainables(connection, run_id, WATCHDOG.no_progress_s)
                        if one.kind == kind
                    ]
                for one in found:
                    if one.state == wanted:
                        return one
                await anyio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"never {wanted}: {found}") from None


async def test_a_drained_runner_has_finished_what_it_had_and_killed_then_it_causes_no_new_attempt(
    opens: Opens,
) -> None:
    async with opens() as rig, rig.runner_process(no_progress_s=WATCHDOG.no_progress_s) as process:
        engine, run_id = rig.flow.engine, rig.flow.run_id
        await until_state(engine, run_id, "runner", "working")
        begun = await rig.submit(SLOW)
        await rig.state(begun, "running")
        assert (await ordered(rig, "runner", "runner")).left is None
        waits = await rig.until(
            "SELECT holds->>'self' AS left FROM processes WHERE process = 'runner'", lambda row: row.left
        )
        assert waits.left == "1"  # it has heard; what it has goes on
        later = await rig.submit(PASSES)
        drained = await until_state(engine, run_id, "runner", "drained")
        assert drained.sentence == "the runner runner is drained"
        await rig.state(begun, "finished")
        async with engine.connect() as connection:
            processes = await present(connection, run_id)
        assert stuck(processes, WATCHDOG.no_progress_s) == []
        process.kill()
        process.wait()
        rig.start_another_runner()
        await rig.state(later, "finished")
        for rollout in (begun, later):
            (attempt,) = await rig.attempts(rollout)
            assert (attempt.attempt, attempt.epoch, attempt.failure_class) == (1, 1, "completed")


async def test_a_runner_that_died_while_it_drained_takes_nothing_when_it_comes_back_and_one_that_was_stopped_does(
    opens: Opens,
) -> None:
    async with opens() as rig:
        engine, run_id = rig.flow.engine, rig.flow.run_id
        async with rig.runner_process(no_progress_s=WATCHDOG.no_progress_s) as process:
            await until_state(engine, run_id, "runner", "working")
            await ordered(rig, "runner", "runner")
            await until_state(engine, run_id, "runner", "drained")
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


async def test_while_every_runner_drains_nobody_is_blamed_and_one_that_is_asked_no_more_takes_what_waits(
    opens: Opens,
) -> None:
    async with opens() as rig:
        engine, run_id = rig.flow.engine, rig.flow.run_id
        rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
        await until_state(engine, run_id, "runner", "working")
        await ordered(rig, "runner", "runner")
        await until_state(engine, run_id, "runner", "drained")
        rollout = await rig.submit(PASSES)
        await rig.until(
            "SELECT state, extract(epoch FROM clock_timestamp() - changed) AS age FROM rollouts",
            lambda row: row.state == "queued" and row.age > 0.2,
        )
        async with engine.connect() as connection:
            # Heard of now: with this limit it would otherwise be blamed for being silent between two heartbeats.
            processes = [replace(one, silent_s=0.0) for one in await present(connection, run_id)]
            found = await stages(connection, run_id, rig.flow.config, queue_settings(rig.flow.config))
        lenient = eased(found, processes)
        assert culprits(lenient, processes, 0.1).get("lease") is None
        (lease,) = [stage for stage in lenient if stage.name == "lease"]
        assert lease.held == "every runner drains: `penstock drain --undo` lets one work again"
        await ordered(rig, "runner", "runner", undo=True)
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
            engine, run_id = rig.flow.engine, rig.flow.run_id
            rig.tasks.start_soon(as_process, "runner", partial(serve_rollouts, rig.settings))
            begun = await rig.submit(SLOW)
            await rig.state(begun, "running")
            await rig.until("SELECT count(*) AS n FROM sessions", lambda row: row.n == 1)
            await ordered(rig, "gateway", "gateway")
            await rig.until(
                "SELECT holds->>'self' AS left FROM processes WHERE process = 'gateway'",
                lambda row: row.left is not None,
            )
            assert await ready(rig.settings.gateway_url) == DRAINS  # and what it has goes on there, see below
            later = await rig.submit(PASSES)
            await until_state(engine, run_id, "gateway", "drained")
            await rig.state(begun, "finished")
            await rig.state(later, "queued")
            # A runner whose question was not answered in time leases it, and gives it back.
            before = await rig.attempts(later)
            assert {attempt.failure_class for attempt in before} <= {"cancelled"}
            secret = rig.settings.gateway_secret.read_text().strip()
            async with GatewayAdmin(rig.settings.gateway_url, secret) as admin:
                with pytest.raises(GatewayDrains, match="opens no new session"):
                    await admin.open_session(
                        run=rig.flow.run, rollout=later, attempt=1, epoch=1, budget=Budget(4, 1024)
                    )

            async def nothing_known(gateways: Gateways) -> str:
                return ""

            # A runner that has not heard yet leases what it cannot begin: it gives that back, which is no try.
            with monkeypatch.context() as patched:
                patched.setattr(Gateways, "shut", nothing_known)
                await rig.until(
                    "SELECT count(*) AS n FROM attempts WHERE rollout_id = :id AND failure_class = 'cancelled'",
                    lambda row: row.n > len(before),
                    id=later,
                )
            await ordered(rig, "gateway", "gateway", undo=True)
            await rig.state(later, "finished")
            assert await ready(rig.settings.gateway_url) == (200, "ok")
            *given_back, last = await rig.attempts(later)
            assert {attempt.failure_class for attempt in given_back} == {"cancelled"}
            assert last.failure_class == "completed"
            (once,) = await rig.attempts(begun)
            assert once.failure_class == "completed"


async def test_who_is_not_known_is_refused_with_those_who_are(opens: Opens) -> None:
    async with opens() as rig:
        with pytest.raises(ConfigurationError, match=r"this run has no gateway 'gateway'; known: none"):
            await ordered(rig, "gateway", "gateway")
        async with rig.flow.engine.begin() as connection:
            for host in ("a", "b"):
                await connection.exec_driver_sql(
                    f"INSERT INTO processes (run_id, host, process, pid, loops) VALUES ({rig.flow.run_id}, '{host}', 'runner-2', 7, '[]')"
                )
        with pytest.raises(ConfigurationError, match=r"no runner 'runner-3'; known: runner-2@a, runner-2@b"):
            await ordered(rig, "runner", "runner-3")
        with pytest.raises(
            ConfigurationError, match="2 hosts have a runner 'runner-2': say which, runner-2@a or"
        ):
            await ordered(rig, "runner", "runner-2")
        with pytest.raises(ConfigurationError, match="the runner runner-2@b does not drain"):
            await ordered(rig, "runner", "runner-2@b", undo=True)
        told = await ordered(rig, "runner", "runner-2@b")
        assert told.sentence == "the runner runner-2@b is told to drain, and has not answered yet"
        assert (await ordered(rig, "runner", "runner-2@b")).draining  # asked again, it is as it is
        assert len(await rig.rows("SELECT action_id FROM actions")) == 1
