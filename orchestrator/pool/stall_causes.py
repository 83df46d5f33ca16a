"""Stall causes: joins a stage's lateness with the reports of the processes that should work on it. Pure.

| observation | cause |
|---|---|
| a loop of such a process has ended | that loop, with its error; at once |
| a loop of such a process makes no progress | that loop, its item, its dependency |
| such a process is silent for too long | the process |
| the stage is late, and no such process runs | the missing process |
| the stage is late, and all of them live and rest | the lost message: nothing reaches them |

Lateness and silence begin at the start of the orchestrator at the earliest: the time in which the run was down is not counted.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import BacklogStageName
from orchestrator.pool.backlog import BacklogStage
from orchestrator.pool.heartbeats import LoopReport, ProcessReport

# The process that works on a stage, and its loops (the first words of their names).
TAKEN_ON: dict[BacklogStageName, tuple[str, tuple[str, ...]]] = {
    BacklogStageName.DISPATCH: (ProcessRole.ORCHESTRATOR, ("dispatcher",)),
    BacklogStageName.LEASE: (ProcessRole.RUNNER, ("rollouts",)),
    BacklogStageName.RUN: (ProcessRole.RUNNER, ("attempt", "heartbeat", "courier", "journal")),
    BacklogStageName.SETTLE: (ProcessRole.GATEWAY, ("courier", "journal")),
    BacklogStageName.VERIFY: (ProcessRole.VERIFIER, ("verifications",)),
    BacklogStageName.GRADE: (ProcessRole.VERIFIER, ("verification", "heartbeat", "courier", "journal")),
    BacklogStageName.REAP: (ProcessRole.ORCHESTRATOR, ("reaper",)),
    BacklogStageName.CONCLUDE: (ProcessRole.ORCHESTRATOR, ("steps", "results", "verdicts")),
    BacklogStageName.TAKE: (ProcessRole.TRAINER, ("train",)),
    BacklogStageName.COMMIT: (ProcessRole.TRAINER, ("train",)),
    BacklogStageName.PUBLISH: (ProcessRole.ORCHESTRATOR, ("relay",)),
    BacklogStageName.SYNC: (ProcessRole.GATEWAY, ("sync", "syncer", "versions", "lease")),
}
ASSIGNED = (BacklogStageName.LEASE, BacklogStageName.VERIFY)
"""The stages whose items wait for a process that leases them: messages assign them."""
SLOT = "a free slot"
ROOM = "room for a sandbox"  # the item of a slot that could not open a sandbox
DRAINS = "the end of its drain"
GATEWAY_DRAINS = "a gateway that does not drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallCause:
    """The cause of a late stage, and how long it has lasted. `loop` and `waits_for` are empty if no loop is to blame."""

    stage: BacklogStage
    process: str
    loop: str
    item: str
    waits_for: str
    seconds: float
    sentence: str


def stall_causes(
    found: Sequence[BacklogStage], processes: Sequence[ProcessReport], no_progress_s: float
) -> dict[str, StallCause]:
    """Causes by stage; stages in order have none."""
    named: dict[str, StallCause] = {}
    up_s = _up(processes)
    for stage in found:
        stage = replace(stage, late_s=min(stage.late_s, up_s))
        if stage.open and (stall_cause := _stall_cause(stage, processes, no_progress_s)) is not None:
            named[stage.name] = stall_cause
    return named


def eased(found: Sequence[BacklogStage], processes: Sequence[ProcessReport]) -> list[BacklogStage]:
    """The stages, adjusted by facts that only processes know: the leasing processes have no free slot, or are ordered to drain."""
    return [_eased(stage, processes) if stage.name in ASSIGNED else stage for stage in found]


def _eased(stage: BacklogStage, processes: Sequence[ProcessReport]) -> BacklogStage:
    living = _living(stage, processes)
    loops = [loop for _, loop in _responsible(stage, living)]
    if (
        not stage.late_s
        or not loops
        or any(loop.waits_for not in (SLOT, DRAINS, GATEWAY_DRAINS) for loop in loops)
    ):
        return stage
    if all(loop.waits_for == DRAINS for loop in loops):
        return replace(
            stage,
            late_s=0.0,
            held=f"every {TAKEN_ON[stage.name][0]} drains: `penstock drain runner NAME --undo` lets one work again",
        )
    if any(loop.waits_for == GATEWAY_DRAINS for loop in loops):
        return replace(
            stage,
            late_s=0.0,
            held="the gateway drains: `penstock drain gateway NAME --undo` lets it work again",
        )
    waiting_slots = sum(loop.item == ROOM for process in living for loop in process.loops)
    obstacle = f"{waiting_slots} {'slots wait' if waiting_slots > 1 else 'slot waits'} for room on the sandboxes' disk: free some"
    return replace(stage, late_s=0.0, held=obstacle if waiting_slots else "every slot is busy")


def _up(processes: Sequence[ProcessReport]) -> float:
    """Time since the run's newest orchestrator started, infinite without one."""
    return min(
        (each.up_s for each in processes if each.kind == ProcessRole.ORCHESTRATOR and not each.stopped),
        default=math.inf,
    )


def _living(stage: BacklogStage, processes: Sequence[ProcessReport]) -> list[ProcessReport]:
    kind, _ = TAKEN_ON[stage.name]
    return [process for process in processes if process.kind == kind and not process.stopped]


def _responsible(
    stage: BacklogStage, living: Sequence[ProcessReport]
) -> Iterator[tuple[ProcessReport, LoopReport]]:
    _, names = TAKEN_ON[stage.name]
    for process in living:
        for loop in process.loops:
            if re.split("[ .]", loop.name)[0] in names:  # "rollouts eval", "courier.publish"
                yield process, loop


def _stall_cause(
    stage: BacklogStage, processes: Sequence[ProcessReport], no_progress_s: float
) -> StallCause | None:
    kind, names = TAKEN_ON[stage.name]
    living, up_s = _living(stage, processes), _up(processes)
    responsive = [process for process in living if min(process.silent_s, up_s) <= no_progress_s]
    loops = list(_responsible(stage, responsive))
    late = stage.late_s > no_progress_s

    def named(process: str, loop: LoopReport | None, seconds: float, sentence: str) -> StallCause:
        item = (loop.item if loop is not None else "") or stage.item
        return StallCause(
            stage=stage,
            process=process,
            loop=loop.name if loop else "",
            item=item,
            waits_for=loop.waits_for if loop else "",
            seconds=seconds,
            sentence=sentence,
        )

    for process, loop in sorted(loops, key=lambda found: (not found[1].ended, -found[1].stuck_s)):
        if loop.stuck_s:
            return named(process.process, loop, loop.stuck_s + process.silent_s, describe(process, loop))
    for process in living:
        if process not in responsive and (late or not responsive):
            return named(
                process.process,
                None,
                process.silent_s,
                f"the {process.process} (pid {process.pid} on {process.host}) has not reported for {process.silent_s:.0f} s",
            )
    if not late:
        return None
    if not living:
        return named(kind, None, stage.late_s, f"no {kind} is running: start one")
    if not loops:
        return named(
            kind,
            None,
            stage.late_s,
            f"the {responsive[0].process} is alive, but without its loop {names[0]}",
        )
    process, loop = loops[0]
    waits = f"waits for {loop.waits_for}" if loop.waits_for else f"works on {loop.item or 'something else'}"
    return named(
        process.process,
        loop,
        stage.late_s,
        f"the {process.process} is alive and its loop {loop.name} {waits}: {stage.item} never reached it",
    )


def describe(process: ProcessReport, loop: LoopReport) -> str:
    """A stuck loop as one sentence."""
    subject = f"the {process.process}'s loop {loop.name}"
    if loop.ended:
        return f"{subject} has ended ({loop.ended}) and was not restarted: restart the {process.process}"
    item = f" on {loop.item}" if loop.item else ""
    waits = f", waiting for {loop.waits_for}" if loop.waits_for else ""
    return f"{subject} has made no progress{item} for {loop.stuck_s + process.silent_s:.0f} s{waits}"


def stuck(processes: Sequence[ProcessReport], no_progress_s: float) -> list[str]:
    """Every loop of a living process that is stuck or has ended, and every silent process, for any stage."""
    found, up_s = [], _up(processes)
    for process in processes:
        if process.stopped:
            continue
        if min(process.silent_s, up_s) > no_progress_s:
            found.append(
                f"the {process.process} (pid {process.pid} on {process.host}) has not reported for {process.silent_s:.0f} s"
            )
            continue
        found += [describe(process, loop) for loop in process.loops if loop.stuck_s]
    return found
