"""Whose time an attempt uses, on a real gateway before a rollout server of one slot."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from scaffolds.base import AgentLimits, BlackBoxDefaults, Endpoint, Launch, TaskView

from orchestrator.bus.feed import in_background
from orchestrator.contracts.errors import AgentTimeout
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import NativeLlm, OpenSession, SessionBudget
from orchestrator.runner.blackbox import Sight, follow, run_black
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.llm import Recorder
from orchestrator.runtime.plugins import provider
from sandboxes.base import Limits, SandboxSpec
from tests.contract.rollout_server import running_server
from tests.draws import most_hold
from tests.integration.gateway.rig import PATIENCE_S, Policies, Rig, open_rig
from tests.waiting import eventually, stays_true_for

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

CALLS = 6
BURNT_S = 1.5


@pytest.fixture(scope="module")
def server_url(policies: Policies) -> Iterator[str]:
    with running_server(policies.model, "--max-running-requests", "1") as server:
        yield server.url


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(
        database_url, nats_server.url, server_url, policies, tmp_path, max_new_tokens=300
    ) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].ready, within_s=PATIENCE_S)
        yield rig


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def clocks_of(timeout_s: float = 60.0) -> Clocks:
    return Clocks(timeout_s=timeout_s, stall_s=60.0, completion_s=60.0)


def recorder_of(native: NativeLlm, clocks: Clocks) -> Recorder:
    return Recorder(
        native=native,
        clocks=clocks,
        limits=AgentLimits(turns=100, context=2048, tool_timeout_s=10.0, timeout_s=60.0),
    )


async def at_once(native: NativeLlm, calls: int = CALLS) -> None:
    """A black box's calls, all in flight at the same time."""
    async with anyio.create_task_group() as tasks:
        for number in range(calls):
            tasks.start_soon(partial(native.complete, [user(f"oak {number}")], agent=f"a{number}"))


async def opened(rig: Rig) -> tuple[int, OpenSession]:
    return await rig.open(budget=SessionBudget(max_turns=100, max_context=2048))


async def test_six_calls_at_once_of_a_white_box_leave_the_agent_its_wall_time_but_for_the_true_waiting(
    rig: Rig,
) -> None:
    rig.start_ingest()
    await most_hold(partial(six_of_a_white_box, rig))


async def six_of_a_white_box(rig: Rig) -> Mapping[str, bool]:
    rollout, session = await opened(rig)
    clocks = clocks_of()
    async with NativeLlm(rig.gateway.url, session.token) as native:
        recorder = recorder_of(native, clocks)

        async def work() -> None:
            async with anyio.create_task_group() as tasks:
                for number in range(CALLS):
                    agent = recorder.agent(f"a{number}")
                    tasks.start_soon(agent.llm.complete, [user(f"oak {number}")])

        await clocks.run(work)
    seal = await rig.seal(rollout)
    await rig.stored(rollout, CALLS)
    ((queued, gaps),) = await rig.rows(
        "SELECT sum(t_queue)::float8, sum(t_gap)::float8 FROM steps WHERE rollout_id = :id", id=rollout
    )
    wall = clocks.elapsed_s
    assert clocks.own_s == pytest.approx(wall - clocks.waiting_s)
    # The calls' own waiting overlaps, so its sum is longer than the attempt.
    compared = {f"sum {queued} > wall {wall}": queued > wall, f"gaps {gaps}": gaps < 0.1 * wall}
    for who, waiting, generation in (
        ("clocks", clocks.waiting_s, clocks.generation_s),
        ("seal", seal.queued_s, seal.generation_s),
    ):
        assert waiting >= 0
        compared[f"{who}: waiting {waiting}, generation {generation} of {wall}"] = (
            waiting < 0.5 * wall < generation <= wall and waiting + generation <= wall + 0.01
        )
    return compared


async def test_six_calls_of_a_black_box_that_are_held_lengthen_its_deadline_by_the_time_of_one(
    rig: Rig,
) -> None:
    await most_hold(partial(six_of_a_black_box, rig))


async def six_of_a_black_box(rig: Rig) -> Mapping[str, bool]:
    rollout, session = await opened(rig)
    server, clocks, held = rig.gateway.pool.servers[0], clocks_of(), 1.0
    activity = partial(rig.admin.activity, rollout=rollout, attempt=1, epoch=1)

    async def open_gate() -> None:
        await eventually(activity, lambda seen: seen.in_flight >= CALLS, within_s=PATIENCE_S)
        await eventually(activity, lambda seen: seen.queued_s >= held)
        server.admit(0)

    async with NativeLlm(rig.gateway.url, session.token) as native:
        server.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_gate)
            async with in_background(partial(follow, activity, clocks, 0.05, Sight())):
                await clocks.run(partial(at_once, native))
    seal = await rig.seal(rollout)
    clocks.sealed(seal)
    wall = clocks.elapsed_s
    assert seal.queued_s >= held
    times = f"own {clocks.own_s}, queued {seal.queued_s}, generation {seal.generation_s} of {wall}"
    return {
        f"queued and generated within: {times}": seal.queued_s + seal.generation_s <= wall + 0.05,
        f"own is the rest: {times}": clocks.own_s == pytest.approx(wall - seal.queued_s, abs=0.01),
        f"much of it generated: {times}": clocks.own_s >= seal.generation_s > 0.3 * (wall - held),
    }


async def test_the_deadline_of_a_black_box_comes_when_what_was_generated_for_it_fills_it(rig: Rig) -> None:
    """The number of calls that queue behind the running one does not matter."""
    rollout, session = await opened(rig)
    clocks = clocks_of(timeout_s=0.5)
    activity = partial(rig.admin.activity, rollout=rollout, attempt=1, epoch=1)

    async def work(native: NativeLlm) -> None:
        while True:
            await at_once(native)

    async with NativeLlm(rig.gateway.url, session.token) as native:
        async with in_background(partial(follow, activity, clocks, 0.05, Sight())):
            with anyio.fail_after(PATIENCE_S), pytest.raises(AgentTimeout, match="wall clock"):
                await clocks.run(partial(work, native))
    clocks.sealed(await rig.seal(rollout))
    assert clocks.own_s >= 0.5


async def test_a_call_that_its_client_gave_up_no_longer_waits_and_one_that_is_shared_waits_once(
    rig: Rig,
) -> None:
    rollout, session = await opened(rig)
    server = rig.gateway.pool.servers[0]
    activity = partial(rig.admin.activity, rollout=rollout, attempt=1, epoch=1)

    async def until(in_flight: int, waited_s: float) -> float:
        seen = await eventually(
            activity,
            lambda seen: seen.in_flight == in_flight and seen.queued_s >= waited_s,
            within_s=PATIENCE_S,
        )
        return seen.queued_s

    server.hold()
    start = time.monotonic()
    async with (
        NativeLlm(rig.gateway.url, session.token) as one,
        NativeLlm(rig.gateway.url, session.token) as two,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.complete, [user("elm")])
            tasks.start_soon(two.complete, [user("elm")])  # the same request is the same call
            await until(1, 0.3)
            tasks.cancel_scope.cancel()
    given_up = await until(0, 0.3)
    assert given_up <= time.monotonic() - start

    async def as_it_was() -> bool:
        return (await activity()).queued_s == given_up

    await stays_true_for(0.3, as_it_was)
    server.admit(0)
    assert (await rig.seal(rollout)).queued_s == pytest.approx(given_up, abs=1e-5)


class Burner(BlackBoxDefaults):
    """A program that works for this many seconds of CPU time, during any of its calls."""

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        work = f"import time\nwhile time.process_time() < {BURNT_S}: pass\nprint('done')"
        return Launch(argv=("python3", "-c", work))


async def test_a_black_box_that_works_in_its_sandbox_while_its_calls_queue_has_worked(rig: Rig) -> None:
    """T is at least the CPU time of its sandbox, although the gateway sees only a call that waits."""
    rollout, session = await opened(rig)
    server, clocks, limits = (
        rig.gateway.pool.servers[0],
        clocks_of(),
        AgentLimits(turns=100, context=2048, tool_timeout_s=10.0, timeout_s=60.0),
    )
    activity = partial(rig.admin.activity, rollout=rollout, attempt=1, epoch=1)
    spec, view = (
        SandboxSpec(limits=Limits(cpu_s=60.0)),
        TaskView(name="burn", domain="general", instruction="work", work_dir="/app"),
    )
    server.hold()
    async with (
        NativeLlm(rig.gateway.url, session.token) as native,
        provider("bubblewrap").open(spec) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(native.complete, [user("elm")])
        await eventually(activity, lambda seen: seen.in_flight, within_s=PATIENCE_S)
        outcome = await run_black(
            Burner(),
            view,
            sandbox,
            session=session,
            clocks=clocks,
            limits=limits,
            activity=activity,
            sight=Sight(),
        )
        tasks.cancel_scope.cancel()
    server.admit(0)
    assert outcome.answer == "done"
    seal = await rig.seal(rollout)
    clocks.sealed(seal)
    assert seal.queued_s >= BURNT_S and seal.generation_s == 0, "the gateway saw it wait all the time"
    assert BURNT_S * 0.9 <= clocks.own_s <= clocks.elapsed_s
