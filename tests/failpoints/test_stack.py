"""Every boundary of a running stack × exit, raise, delay, duplicate: each is hit, the stack recovers, and in the end nothing is lost."""

import math
import resource
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from orchestrator.audit.i5_sandboxes import REMOVED
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.runtime.failpoints import BOUNDARIES
from tests.e2e.audited import no_violations
from tests.e2e.stack_rig import Stack, until
from tests.failpoints.boundaries import Case, cases
from tests.failpoints.world import World, at_work
from tests.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.timeout(4000),
    pytest.mark.tier("failpoints"),
]

PATIENCE_S = 600.0  # for the next action of a case, without the time that it waits for others
AGAIN_S = 1.0  # without a hit, before a boundary is provoked again
UNSUPERVISED = {"up", "client"}
HOPELESS = 5  # cases that fail: the stack is broken, the others would only wait


async def test_every_failpoint_is_survived_and_nothing_is_lost_or_trained_twice(
    stack: Stack,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: tuple[list[str] | None, list[str] | None],
    rotation: tuple[int, int],
) -> None:
    part, parts = rotation
    wanted = cases(*chosen)[part::parts]
    if not wanted:
        pytest.skip("another failpoint was selected")
    async with at_work(stack, model, monkeypatch) as world:
        failed = await exercised(world, wanted)
        await ended_whole(world)
    assert stack.signalled(signal.SIGTERM) == 0
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{sum(len(case.names) for case in wanted)} boundaries: {spent.ru_utime + spent.ru_stime:.0f} s of CPU time"
    )
    assert not failed, "\n".join(failed)
    assert complaints(stack) == []
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])


def complaints(stack: Stack) -> list[str]:
    """Lines of logs in which a process reports an unforeseen error; those of the broken scaffold do not count."""
    logs = [stack.log, *sorted(stack.home.layout.logs.glob("*.log"))]
    return [
        f"{log.name}: {line[:300]}"
        for log in logs
        for line in log.read_text(errors="replace").splitlines()
        if "Traceback" in line and "this scaffold is broken" not in line
    ]


async def ended_whole(world: World) -> None:
    """The run is ended by a person; then every submission is in one terminal state, and the auditor finds nothing."""
    await world.load.stop()
    done = world.stack.penstock("run", "end", timeout_s=PATIENCE_S)
    assert done.returncode == 0, done
    await world.seen.until_ended(PATIENCE_S)
    await world.seen.nothing_lost()
    report = await no_violations(world.stack, world.seen)
    [looked] = [check for check in report.checks if check.name == REMOVED]
    assert not looked.skipped, looked.skipped


async def exercised(world: World, wanted: Sequence[Case]) -> list[str]:
    """Exercise all cases, at the same time if they disturb different processes; returns the failures."""
    failed: list[str] = []
    busy: set[str] = set()
    freed = anyio.Condition()
    waiting = list(wanted)

    async def one(case: Case) -> None:
        began = anyio.current_time()
        try:
            await exercise(world, case)
            who = ", ".join(sorted({process for name in case.names for process in world.who(name)}))
            print(f"{case.name}: {anyio.current_time() - began:.1f} s, by {who}")
        except AssertionError as error:
            failed.append(
                f"{case.name}: {error}; alone: ./ops/test --tier failpoints --failpoint {' --failpoint '.join(case.names)}"
            )
            print(failed[-1])
        async with freed:
            busy.difference_update(case.busy)
            freed.notify_all()

    async with anyio.create_task_group() as tasks:
        while waiting and len(failed) < HOPELESS:
            free = next((case for case in waiting if not case.busy & busy), None)
            if free is None:
                async with freed:
                    await freed.wait()
                continue
            waiting.remove(free)
            busy |= free.busy
            tasks.start_soon(one, free)
    return failed


async def exercise(world: World, case: Case) -> None:
    """Arm its boundaries, wait until every action was taken, then until each is passed once more and work continues."""
    await taken(world, case, case.points, case.wanted)
    # The act again, undisturbed: each process that was killed or got a false answer is back at it.
    again = {f"{name}.after": ["delay 0"] for name in case.names}
    await taken(world, case, again, [f"{point} delay 0" for point in again])
    await until(lambda: all_ready(world, case), f"{', '.join(case.busy)} are ready again", PATIENCE_S)
    await world.progress(PATIENCE_S)
    for name in case.names:
        known = {process if process not in UNSUPERVISED else "-" for process in BOUNDARIES[name].who}
        strange = world.who(name) - known
        assert not strange, f"{', '.join(strange)} got to {name}, which BOUNDARIES does not know"


async def taken(world: World, case: Case, points: dict[str, list[str]], wanted: list[str]) -> None:
    before = world.hits()
    world.arm(points)

    def left() -> list[str]:
        return sorted((before + Counter(wanted) - world.hits()).elements())

    hits, quiet_since, fewest = before, anyio.current_time(), math.inf

    def settled() -> bool:
        """Whether every action was taken, or nothing was hit for a while. Each action that is taken renews the patience."""
        nonlocal hits, quiet_since, fewest
        if (now := world.hits()) != hits:
            hits, quiet_since = now, anyio.current_time()
        if len(left()) < fewest:
            fewest, patience.deadline = len(left()), anyio.current_time() + PATIENCE_S
        return not left() or anyio.current_time() - quiet_since >= AGAIN_S

    with anyio.move_on_after(PATIENCE_S) as patience:
        while left():
            if case.provoke is not None:
                await case.provoke(world)
            hits, quiet_since = world.hits(), anyio.current_time()
            await eventually(settled, within_s=math.inf, every_s=0.02)
    if missing := left():
        world.disarm(points)
        raise AssertionError(f"not reached for {PATIENCE_S:g} s: {', '.join(missing)}")


def all_ready(world: World, case: Case) -> bool:
    found = {process.name: process.state for process in world.stack.status().processes}
    return all(found.get(name, ProcessState.READY) is ProcessState.READY for name in case.busy)
