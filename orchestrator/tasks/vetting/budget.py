"""The control `budget`: time, memory and disk of solution and tests stay below the declared limits, with reserve.

Time is measured. Memory and disk are not: one more run of the solution and its verification has limits lower by the reserve, and must earn the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.resources import granted
from orchestrator.tasks.settings import TaskSettings
from orchestrator.tasks.verdict import same
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from orchestrator.tasks.vetting.outcomes import Outcome

RESERVE: Final = 0.25
"""The share of a limit that stays unused."""


def time_findings(runs: Sequence[Outcome], settings: TaskSettings) -> list[Finding]:
    """The slowest run of the solution, and of its tests, against their limits."""
    found = []
    for fault, what, limit_s, took_s in (
        (TaskFault.SLOW_ORACLE, "the solution", settings.agent.timeout_sec, max(r.agent_s for r in runs)),
        (TaskFault.SLOW_TESTS, "the tests", settings.verifier.timeout_sec, max(r.tests_s for r in runs)),
    ):
        if took_s > limit_s * (1 - RESERVE):
            says = f"{what} took {took_s:.1f} s of {limit_s:g} s: less than {RESERVE:.0%} in reserve"
            found.append(Finding(control=Control.BUDGET, fault=fault, says=says))
    return found


def limits_of(section: SandboxSection, settings: TaskSettings) -> dict[str, float]:
    """The limits that a run with `section` grants the sandboxes of a task and of its tests, by name."""
    tables = {"": settings.environment, "tests.": settings.judging}
    return {
        f"{whose}{name}": getattr(granted(section, table), name)
        for whose, table in tables.items()
        for name in ("memory_mb", "disk_mb", "processes", "cpu_s")
    }


def squeezed(section: SandboxSection) -> SandboxSection:
    """The same sandbox without the reserve."""
    share = 1 - RESERVE
    return section.model_copy(
        update={
            "memory_mb": max(int(section.memory_mb * share), 1),
            "disk_mb": max(int(section.disk_mb * share), 1),
            "processes": max(int(section.processes * share), 1),
        }
    )


def for_probes(
    limits: SandboxSection, table: Mapping[str, Any], small: SandboxSection, placed_mb: int = 0
) -> SandboxSection:
    """Limits of sandboxes for probes, which use up what they get: `small`, but what the task declares. `limits`: granted for its table; `placed_mb`:
    megabytes of files that the sandbox begins with, or that a solution may copy."""
    asks = {"memory_mb": {"memory_mb", "memory"}, "disk_mb": {"storage_mb", "storage"}}
    most = {key: getattr(small, key) for key in ("memory_mb", "processes", "cpu_s", "disk_mb")}
    most["disk_mb"] += 2 * placed_mb
    update = {
        key: min(size, getattr(limits, key))
        for key, size in most.items()
        if not asks.get(key, set()) & table.keys()
    }
    return limits.model_copy(update=update)


def squeeze_findings(run: Outcome, maximum: float | None, limits: SandboxSection) -> list[Finding]:
    """`run`: the solution in a sandbox of `squeezed` limits; `maximum`: its reward otherwise."""
    if same(run.reward, maximum):
        return []
    got = "no verdict" if run.reward is None else f"{run.reward:.10g}"
    because = f" ({run.reason})" if run.reason else ""
    says = (
        f"the solution earns {got}{because} with {1 - RESERVE:.0%} of memory ({limits.memory_mb} MB), disk ({limits.disk_mb} MB) and processes "
        f"({limits.processes})"
    )
    return [Finding(control=Control.BUDGET, fault=TaskFault.TIGHT_LIMITS, says=says)]
