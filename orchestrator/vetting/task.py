"""The controls of one task, in order, up to the wanted level."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from orchestrator.contracts.errors import InfraFailure
from orchestrator.contracts.vetting import Level
from orchestrator.probing import SMALL, Left, probed
from orchestrator.runner.metrics import WorkerMetrics
from orchestrator.runtime import plugins
from orchestrator.runtime.exception_groups import first_error
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured
from orchestrator.settings.providers import tables
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.multi_step import steps_of
from orchestrator.tasks.probes import PROBES, Probe
from orchestrator.tasks.traps import traps_of
from orchestrator.tasks.verdict import same
from orchestrator.tasks.vetting.budget import RESERVE, for_probes, limits_of, squeeze_findings, time_findings
from orchestrator.tasks.vetting.conditions import HOOKED, PLAIN, Condition, plan, varies
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from orchestrator.tasks.vetting.instruction import instruction_findings
from orchestrator.tasks.vetting.outcomes import Outcome, flaky_findings, nothing_findings, oracle_findings
from orchestrator.tasks.vetting.report import ControlResult, Status, TaskReport, result_of
from orchestrator.tasks.vetting.tamper import finding_of, kinds
from orchestrator.vetting.leak import leak_findings
from orchestrator.vetting.readable import readable
from orchestrator.vetting.trials import Trials
from sandboxes.base import PathRefused, Provider, SandboxError

log = get(__name__)
STEPS: Final = len(Control)
"""Controls of a task, for progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How tasks are vetted. `times`: plain runs of oracle and nothing, and varied runs of each kind; `until`: the wanted level; `agent_s`:
    seconds of a probe; `at_once`: probes of one task side by side."""

    section: SandboxSection
    times: int = 3
    until: Level = Level.VETTED
    probes: Sequence[Probe] = PROBES
    agent_s: float = 8.0
    at_once: int = 1


def provider_of(section: SandboxSection) -> Provider:
    """The run's provider."""
    return plugins.provider(section.provider, tables(section))  # type: ignore[no-any-return]


async def vet(
    place: str,
    found: Task | str,
    provider: Provider,
    options: Options,
    tick: Callable[[Control], object] = lambda _: None,
) -> TaskReport:
    """Vet one task. `found`: the task, or the sentence why it cannot be read. A platform that fails gives a report with `undecided`. No error over
    one task comes out: it would end the vetting of the others."""
    run = _Vet(place, found, provider=provider, options=options, tick=tick)
    undecided = refused = ""
    try:
        return await run.report()
    except* SandboxError as errors:
        undecided = f"the sandboxes failed: {first_error(errors)}"
    except* InfraFailure as errors:  # a health check that succeeds in some sandboxes alone
        undecided = str(first_error(errors))
    except* OSError as errors:
        undecided = f"this machine failed: {first_error(errors)}"
    except* (
        ValueError,
        PathRefused,
    ) as errors:  # its sandbox opened before: an image that is gone, a file with no place
        refused = str(first_error(errors))
    except* Exception as errors:  # counted and logged: one task can end only its own report
        undecided = f"Penstock failed: {type(first_error(errors)).__name__}: {first_error(errors)}"
        measured(WorkerMetrics).errors.labels("vetting").inc()
        log.exception("vetting.failed", place=place)
    return run.ended(undecided) if undecided else run.refused(refused)


class _Vet:
    def __init__(
        self,
        place: str,
        found: Task | str,
        *,
        provider: Provider,
        options: Options,
        tick: Callable[[Control], object],
    ) -> None:
        self._place, self._found, self._provider, self._options = place, found, provider, options
        self._tick, self._results = tick, list[ControlResult]()
        self._plain: list[Outcome] = []  # plain runs of the solution
        self._started = time.monotonic()

    def ended(self, undecided: str = "") -> TaskReport:
        task = self._found if isinstance(self._found, Task) else None
        done = {result.control for result in self._results}
        skipped = [
            ControlResult(control=control, status=Status.SKIPPED)
            for control in Control
            if control not in done
        ]
        warnings = (
            ()
            if task is None
            else tuple(f"{trap.file} line {trap.line}: {trap.rule} {trap.says}" for trap in traps_of(task))
        )
        return TaskReport(
            place=self._place,
            name=task.called(self._place) if task else self._place,
            sha256=task.content_hash if task else "",
            provider=self._provider.name,
            times=self._options.times,
            results=(*self._results, *skipped),
            undecided=undecided,
            warnings=warnings,
            limits=limits_of(self._options.section, task.settings) if task else {},
            at=datetime.now(UTC).isoformat(timespec="minutes"),
        )

    def _add(self, control: Control, findings: Sequence[Finding], details: str = "") -> None:
        now = time.monotonic()
        self._results.append(result_of(control, findings, details=details, seconds=now - self._started))
        self._started = now
        self._tick(control)

    def _stops_at(self, level: Level) -> bool:
        return self._options.until.rank <= level.rank

    def _fails(self, control: Control, fault: TaskFault, says: str) -> TaskReport:
        self._add(control, [Finding(control=control, fault=fault, says=says)])
        return self.ended()

    def refused(self, says: str) -> TaskReport:
        """The report of a task that one of its sandboxes refused after the first had opened."""
        done = {result.control for result in self._results}
        running = next(control for control in Control if control not in done)
        return self._fails(running, TaskFault.DOES_NOT_BUILD, says)

    async def report(self) -> TaskReport:
        if isinstance(self._found, str):
            return self._fails(Control.FORM, TaskFault.NOT_WELL_FORMED, self._found)
        task, section = self._found, self._options.section
        try:
            check_admissible(task, section, self._place)
        except ValueError as error:
            return self._fails(Control.FORM, TaskFault.NOT_WELL_FORMED, str(error))
        self._add(Control.FORM, ())
        if self._stops_at(Level.WELL_FORMED):
            return self.ended()
        try:
            trials = Trials(task, self._provider, section=section, at_once=self._options.at_once)
            shown, faketime, note = await readable(
                trials.run, self._provider, trials.section, task.settings.healthcheck
            )
            await trials.run.open_tests()
        except (ValueError, InfraFailure, PathRefused) as error:
            return self._fails(Control.BUILD, TaskFault.DOES_NOT_BUILD, str(error))
        self._add(Control.BUILD, (), details=note or f"{len(shown.files)} readable files")
        if self._stops_at(Level.BUILDS):
            return self.ended()
        left = await self._controls(trials, faketime, trials.run.pinned.union(shown.variables))
        if left is not None:
            leaks, unread = await leak_findings(trials, left, shown)
            if shown.unread:
                leaks.append(
                    Finding(
                        control=Control.LEAK,
                        fault=TaskFault.NOT_SEARCHED,
                        says=shown.unread,
                        remedy=shown.remedy,
                    )
                )
            self._add(Control.LEAK, leaks, "; ".join(filter(None, (note, unread))))
            await self._budget(trials)
        unnamed: list[Finding] = []
        stated = ""
        for step in steps_of(task):  # a step may rely on earlier instructions
            stated = f"{stated}\n{step.task.instruction}"
            known = {finding.where for finding in unnamed}
            found = instruction_findings(stated, step.task.tests_files(), shown.files)
            unnamed += [finding for finding in found if finding.where not in known]
        self._add(Control.INSTRUCTION, unnamed)
        if not self._stops_at(Level.CONTROLS_HOLD):
            await self._tamper(trials)
        return self.ended()

    async def _controls(self, trials: Trials, faketime: str, pinned: Collection[str]) -> Left | None:
        """Oracle, nothing, flaky. The work of a solution that earns the maximum. `pinned`: variables that the task sets."""
        times, task = self._options.times, trials.task
        tests = {path: file for step in steps_of(task) for path, file in step.task.tests_files().items()}
        conditions = plan(times, tests, faketime, pinned)
        left: Left | None = None
        if not task.is_solved:
            where = " for every step" if task.is_multi_step else ""
            says = f"the task has no solution/solve.sh{where}, so nothing shows that it can be solved"
            self._add(
                Control.ORACLE, [Finding(control=Control.ORACLE, fault=TaskFault.NO_SOLUTION, says=says)]
            )
        else:
            left = await trials.solved()
            self._plain = [await trials.outcome(left), *await trials.oracle([PLAIN] * (times - 1))]
            self._add(Control.ORACLE, oracle_findings(self._plain, trials.maximum), _rewards(self._plain))
        earned = bool(self._plain) and all(same(run.reward, trials.maximum) for run in self._plain)
        nothing = await trials.nothing([PLAIN] * times)
        self._add(Control.NOTHING, nothing_findings(nothing), _rewards(nothing))
        varied = await trials.oracle(conditions) if earned else ()
        of_solution = flaky_findings("the solution", self._plain, varied)
        flaky = await _by_order("the solution", of_solution, self._plain, trials.oracle)
        what = "the untouched environment"
        of_nothing = flaky_findings(what, nothing, await trials.nothing(conditions))
        flaky += await _by_order(what, of_nothing, nothing, trials.nothing)
        self._add(Control.FLAKY, flaky, f"varied: {varies(conditions, pinned)}")
        return left if earned else None

    async def _budget(self, trials: Trials) -> None:
        found = time_findings(self._plain, trials.task.settings)
        found += squeeze_findings(await trials.squeezed(), trials.maximum, trials.section)
        slowest = max(run.agent_s for run in self._plain), max(run.tests_s for run in self._plain)
        details = f"solution {slowest[0]:.1f} s, tests {slowest[1]:.1f} s; the same with {1 - RESERVE:.0%} of the limits"
        self._add(Control.BUDGET, found, details)

    async def _tamper(self, trials: Trials) -> None:
        options, settings = self._options, trials.task.settings
        placed = sum(file.size for file in trials.task.files.values()) >> 20
        found = await probed(
            trials.task,
            self._provider,
            options.probes,
            section=for_probes(trials.section, settings.environment, SMALL, placed),
            judging=for_probes(trials.judging, settings.judging, SMALL, placed),
            agent_s=options.agent_s,
            at_once=options.at_once,
        )
        tried = [each for each in found.tried if not each.skipped]
        findings = [finding_of(each.probe, each.reward, each.reason, each.leaked) for each in tried]
        details = f"{len(tried)} probes of {kinds([each.probe for each in tried])} kinds"
        self._add(Control.TAMPER, [finding for finding in findings if finding is not None], details)


async def _by_order(
    what: str,
    found: Sequence[Finding],
    plain: Sequence[Outcome],
    runs: Callable[[Sequence[Condition]], Awaitable[Sequence[Outcome]]],
) -> list[Finding]:
    """Those of the findings that stay when the hook that orders the tests, without another order, changes the reward: the order is not the cause."""
    by_order = [finding for finding in found if finding.fault is TaskFault.ORDER_DEPENDENT]
    if by_order and flaky_findings(what, plain, await runs([HOOKED])):
        return [finding for finding in found if finding not in by_order]
    return list(found)


def _rewards(runs: Sequence[Outcome]) -> str:
    words = ("no verdict" if run.reward is None else f"{run.reward:.10g}" for run in runs)
    return f"rewards {', '.join(words)}"
