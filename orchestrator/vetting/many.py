"""Vets tasks side by side. Each finished report is kept at once, so a second call continues after the last one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio

from orchestrator.contracts.vetting import Level
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.budget import limits_of
from orchestrator.tasks.vetting.findings import Control, TaskFault
from orchestrator.tasks.vetting.report import Status, TaskReport
from orchestrator.vetting.records import Records
from orchestrator.vetting.task import STEPS, Options, vet
from sandboxes.base import Provider

_LAST: Final = {
    Level.NONE: Control.FORM,
    Level.WELL_FORMED: Control.FORM,
    Level.BUILDS: Control.BUILD,
    Level.CONTROLS_HOLD: Control.INSTRUCTION,
    Level.VETTED: Control.TAMPER,
}
_LASTING: Final = frozenset(
    {
        TaskFault.NO_SOLUTION,
        TaskFault.NOTHING_PAYS,
        TaskFault.LEAK_IN_FILE,
        TaskFault.LEAK_IN_ENV,
        TaskFault.LEAK_ENCODED,
        TaskFault.LEAK_IN_CACHE,
        TaskFault.LEAK_IN_HISTORY,
        TaskFault.LEAK_IN_NAME,
        TaskFault.PROBE_PAYS,
        TaskFault.PROBE_LEAKS,
    }
)
"""Faults that a task keeps as long as its bytes. The cause of another may lie outside: images, limits of the run, a busy machine, chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A task to vet, or the sentence why it cannot be read, and where its report is kept."""

    place: str
    found: Task | str
    records: Records


async def vet_all(
    candidates: Sequence[Candidate],
    provider: Provider,
    options: Options,
    *,
    jobs: int,
    again: bool = False,
    tick: Callable[[int, int], object] = lambda *_: None,
) -> list[TaskReport]:
    """The reports in the order of the candidates. At most `jobs` sandboxes run at once; `again`: also tasks that have a report. `tick` receives the
    numbers of finished and of all controls."""
    found: dict[int, TaskReport] = {}
    slots, at_once = anyio.CapacityLimiter(jobs), max(jobs // max(len(candidates), 1), 1)
    done = 0

    def ticked(controls: int) -> None:
        nonlocal done
        done += controls
        tick(done, STEPS * len(candidates))

    async def one(number: int, candidate: Candidate) -> None:
        async with slots:
            known = None if again else await known_report(candidate, provider, options)
            ran = 0

            def step(_: Control) -> None:
                nonlocal ran
                ran += 1
                ticked(1)

            report = known or await vet(
                candidate.place, candidate.found, provider, replace(options, at_once=at_once), step
            )
            if known is None and report.sha256 and not report.undecided:
                await candidate.records.add(report)
            found[number] = report
            ticked(STEPS - ran)

    async with anyio.create_task_group() as group:
        for number, candidate in enumerate(candidates):
            group.start_soon(one, number, candidate)
    return [found[number] for number in sorted(found)]


async def known_report(candidate: Candidate, provider: Provider, options: Options) -> TaskReport | None:
    """A kept report that answers the same question about the same bytes under the same limits."""
    if isinstance(candidate.found, str):
        return None
    report = await candidate.records.find(candidate.found.content_hash)
    if report is None or report.provider != provider.name or report.times < options.times:
        return None
    if report.limits and report.limits != limits_of(options.section, candidate.found.settings):
        return None
    return (
        replace(report, place=candidate.place, name=candidate.found.called(candidate.place), kept=True)
        if finished(report, options.until)
        else None
    )


def finished(report: TaskReport, until: Level) -> bool:
    """Whether a report holds everything that a call up to `until` would run, and none of it may have changed while the task did not."""
    if not _LASTING.issuperset(report.faults):
        return False
    status = {result.control: result.status for result in report.results}
    return status.get(_LAST[until], Status.SKIPPED) is not Status.SKIPPED
