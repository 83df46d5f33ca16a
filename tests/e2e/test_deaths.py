"""Processes die, the transport forgets, people press Ctrl-C: the run continues to its end, and nothing is lost."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.e2e.audited import no_violations
from tests.e2e.observer import Observer, observing
from tests.e2e.stack_rig import Stack

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("faults")]

VICTIMS = ("orchestrator", "gateway", "runner", "verifier", "trainer", "rollout-server", "nats", "postgres")


async def ended_well(seen: Observer, stack: Stack) -> None:
    """The run ended with nothing lost, no process had an unforeseen error, and, once stopped, nothing is left behind."""
    await seen.until_ended()
    await seen.nothing_lost()
    await no_violations(stack, seen)
    assert await seen.value("select count(*) from groups where run_id = :run and not done") == 0
    assert stack.signalled(signal.SIGTERM) == 0
    assert stack.tracebacks() == []
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])


async def test_kill_9_of_each_process_in_turn_loses_nothing_and_trains_nothing_twice(
    stack: Stack, model: Path
) -> None:
    # However many batches a slow machine commits during a restart: they do not end the run, and there is work for more.
    stack.configure(model, batches=10_000)
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(16, seconds=0.2)
        for victim in VICTIMS:
            await seen.until_at_work(victim)
            done = await seen.batches()
            killed = stack.kill(victim)
            await stack.back(victim, killed)
            await seen.publish(8, seconds=0.2)
            await seen.until_batches(done + 1)
        restarts = {process.name: process.restarts for process in stack.status().processes}
        assert all(restarts[victim] >= 1 for victim in VICTIMS), restarts
        assert stack.penstock("run", "end").returncode == 0
        await ended_well(seen, stack)


async def test_the_jetstream_store_deleted_in_mid_run_loses_nothing(stack: Stack, model: Path) -> None:
    stack.configure(model, batches=6)
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(8, seconds=0.2)
        await seen.until_batches(1)
        async with anyio.create_task_group() as tasks:
            # These lie on the stream, or come too late for it.
            tasks.start_soon(partial(seen.publish, 8, seconds=0.2))
            await seen.until_at_work("runner")
            server = stack.of("nats").pid
            assert server is not None
            os.kill(server, signal.SIGSTOP)
            shutil.rmtree(stack.home.layout.nats / "jetstream")
            os.kill(server, signal.SIGKILL)
            await stack.back("nats", server)
        await ended_well(seen, stack)


async def test_after_ctrl_c_and_after_kill_9_of_the_supervisor_up_continues_the_run_to_its_end(
    stack: Stack, model: Path
) -> None:
    # So many that the run does not end while a busy machine looks, and time to give back for a process that stands still.
    stack.configure(model, batches=9, more="[timeouts]\ngive_back_s = 60.0\n")
    await stack.up()
    second = stack.penstock("up")
    assert (second.returncode, second.stderr.count("\n")) == (1, 1), second
    assert "another supervisor" in second.stderr and "penstock down" in second.stderr
    async with observing(stack.home) as seen:
        await seen.publish(28, seconds=1.0)
        await seen.until_batches(1)
        ledger = seen.ledger
        await seen.until_at_work("verifier")
    assert stack.signalled(signal.SIGINT) == 0
    log = stack.log.read_text()
    assert log.index("runner stopped") < log.index("gateway stopping")  # whose sessions it closes
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])

    await stack.up()
    async with observing(stack.home, ledger) as seen:
        await seen.until_given_back()
        await seen.until_batches(2)
        await seen.until_at_work("verifier")
    left = [process.pid for process in stack.status().processes if process.pid is not None]
    stack.signalled(signal.SIGKILL)

    await stack.up()
    assert not {process.pid for process in stack.status().processes} & set(left)
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)
    async with observing(stack.home, ledger) as seen:
        await ended_well(seen, stack)
