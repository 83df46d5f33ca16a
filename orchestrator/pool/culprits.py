"""What holds a stage up: its lateness, joined with what the processes that should take it on say of themselves. Pure.

| seen | culprit |
|---|---|
| a loop of such a process has ended | that loop, with its error; at once |
| a loop of such a process makes no progress | that loop, its item, its dependency |
| such a process is silent for too long | the process |
| the stage is late, and there is no such process | that there is none |
| the stage is late, and all of them live and rest | that nothing reaches them: it was lost on its way |
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.pool.presence import LoopReport, ProcessReport
from orchestrator.pool.stages import Stage

# Which process takes a stage on, by which loops (the first words of their names).
TAKEN_ON: dict[str, tuple[str, tuple[str, ...]]] = {
    "dispatch": ("orchestrator", ("dispatcher",)),
    "lease": ("runner", ("rollouts",)),
    "run": ("runner", ("attempt", "heart", "courier", "journal")),
    "settle": ("gateway", ("courier", "journal")),
    "verify": ("verifier", ("verifications",)),
    "grade": ("verifier", ("verification", "heart", "courier", "journal")),
    "reap": ("orchestrator", ("reaper",)),
    "conclude": ("orchestrator", ("steps", "results", "verdicts")),
    "take": ("trainer", ("train",)),
    "commit": ("trainer", ("train",)),
    "publish": ("orchestrator", ("relay",)),
    "sync": ("gateway", ("sync", "keeper", "versions", "lease")),
}
SLOT = "a free slot"
ROOM = "room for a sandbox"  # what a slot works on that could not open one
DRAINS = "the end of its drain"
GATEWAY_DRAINS = "a gateway that does not drain"


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who holds a stage up, and for how long already. `loop` and `waits_for` are empty where no loop is to blame."""

    stage: Stage
    process: str
    loop: str
    item: str
    waits_for: str
    seconds: float
    sentence: str


def culprits(
    found: Sequence[Stage], processes: Sequence[ProcessReport], no_progress_s: float
) -> dict[str, Culprit]:
    """By stage; stages in order have none."""
    named = {}
    for stage in found:
        if stage.open and (culprit := _culprit(stage, processes, no_progress_s)) is not None:
            named[stage.name] = culprit
    return named


def eased(found: Sequence[Stage], processes: Sequence[ProcessReport]) -> list[Stage]:
    """The stages, with what only processes know: whoever should lease has no free slot, or was asked to take nothing."""
    return [_eased(stage, processes) if stage.name in ("lease", "verify") else stage for stage in found]


def _eased(stage: Stage, processes: Sequence[ProcessReport]) -> Stage:
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
            held=f"every {TAKEN_ON[stage.name][0]} drains: `penstock drain --undo` lets one work again",
        )
    if any(loop.waits_for == GATEWAY_DRAINS for loop in loops):
        return replace(
            stage, late_s=0.0, held="the gateway drains: `penstock drain --undo` lets it work again"
        )
    full = sum(loop.item == ROOM for process in living for loop in process.loops)
    held = f"{full} {'slots wait' if full > 1 else 'slot waits'} for room on the sandboxes' disk: free some"
    return replace(stage, late_s=0.0, held=held if full else "every slot is busy")


def _living(stage: Stage, processes: Sequence[ProcessReport]) -> list[ProcessReport]:
    kind, _ = TAKEN_ON[stage.name]
    return [process for process in processes if process.kind == kind and not process.stopped]


def _responsible(stage: Stage, living: Sequence[ProcessReport]) -> Iterator[tuple[ProcessReport, LoopReport]]:
    _, names = TAKEN_ON[stage.name]
    for process in living:
        for loop in process.loops:
            if re.split("[ .]", loop.name)[0] in names:  # "rollouts eval", "courier.publish"
                yield process, loop


def _culprit(stage: Stage, processes: Sequence[ProcessReport], no_progress_s: float) -> Culprit | None:
    kind, names = TAKEN_ON[stage.name]
    living = _living(stage, processes)
    heard = [process for process in living if process.silent_s <= no_progress_s]
    loops = list(_responsible(stage, heard))
    late = stage.late_s > no_progress_s

    def named(process: str, loop: LoopReport | None, seconds: float, sentence: str) -> Culprit:
        item = (loop.item if loop is not None else "") or stage.item
        return Culprit(
            stage, process, loop.name if loop else "", item, loop.waits_for if loop else "", seconds, sentence
        )

    for process, loop in sorted(loops, key=lambda found: (not found[1].ended, -found[1].stuck_s)):
        if loop.stuck_s:
            return named(process.process, loop, loop.stuck_s + process.silent_s, said(process, loop))
    for process in living:
        if process not in heard and (late or not heard):
            return named(
                process.process,
                None,
                process.silent_s,
                f"the {process.process} (pid {process.pid} on {process.host}) has not been heard of for {process.silent_s:.0f} s",
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
            f"the {heard[0].process} lives, but its loop {names[0]} is not there",
        )
    process, loop = loops[0]
    waits = f"waits for {loop.waits_for}" if loop.waits_for else f"works on {loop.item or 'something else'}"
    return named(
        process.process,
        loop,
        stage.late_s,
        f"the {process.process} lives and its loop {loop.name} {waits}: {stage.item} never reached it",
    )


def said(process: ProcessReport, loop: LoopReport) -> str:
    """A stuck loop as one sentence."""
    where = f"the {process.process}'s loop {loop.name}"
    if loop.ended:
        return f"{where} has ended ({loop.ended}) and nobody began it anew: restart the {process.process}"
    item = f" on {loop.item}" if loop.item else ""
    waits = f", waiting for {loop.waits_for}" if loop.waits_for else ""
    return f"{where} has made no progress{item} for {loop.stuck_s + process.silent_s:.0f} s{waits}"


def stuck(processes: Sequence[ProcessReport], no_progress_s: float) -> list[str]:
    """Every loop of a living process that is stuck or has ended, and every process that is silent, whatever stage it belongs to."""
    found = []
    for process in processes:
        if process.stopped:
            continue
        if process.silent_s > no_progress_s:
            found.append(
                f"the {process.process} (pid {process.pid} on {process.host}) has not been heard of for {process.silent_s:.0f} s"
            )
            continue
        found += [said(process, loop) for loop in process.loops if loop.stuck_s]
    return found
