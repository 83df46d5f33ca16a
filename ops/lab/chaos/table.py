"""The output for people and machines: a line per fault as it happens, the table after every `EVERY` faults and at the end, one JSON object."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ops.lab.chaos import results as fault_results
from ops.lab.chaos.plan import COUNTED, FaultKind
from ops.lab.chaos.results import FaultOutcome
from ops.lab.chaos.scenario import Results
from orchestrator.audit.findings import plain

EVERY = 50  # faults


class Shown:
    """Called after each fault. `done` starts with the faults before a resume; `total` is the number of the last fault, counted from 1."""

    def __init__(self, console: Console, done: Sequence[FaultOutcome], total: int) -> None:
        self.console, self.done, self.total = console, list(done), total

    def __call__(self, outcome: FaultOutcome) -> None:
        self.done.append(outcome)
        show_one(self.console, outcome, self.total)
        if len(self.done) % EVERY == 0:
            show_recoveries(self.console, self.done)


def show_one(console: Console, outcome: FaultOutcome, total: int) -> None:
    """Print the line of one fault that is over."""
    recovery = f"{outcome.recovery_s:6.2f} s" if outcome.recovery_s is not None else "       -"
    did = f"  {outcome.did} {COUNTED[FaultKind(outcome.kind)]}" if outcome.did is not None else ""
    flight = "in flight" if outcome.in_flight else "idle     "
    console.print(
        f"{outcome.index + 1:4d}/{total}  {outcome.title:32s} {flight}  recovered in {recovery}  "
        f"{outcome.steps:4d} steps  {outcome.commits} commits{did}{'  ' + outcome.problem if outcome.problem else ''}",
        highlight=False,
        soft_wrap=True,
    )


def show_recoveries(console: Console, done: Sequence[FaultOutcome]) -> None:
    """Print the table of the faults done so far."""
    table = Table(
        "component", "faults", "p50 s", "p95 s", "max s", title="recovery, to the first new progress"
    )
    for victim, found in fault_results.recoveries(done).items():
        seconds = (f"{value:.2f}" for value in (found.p50, found.p95, found.largest))
        table.add_row(victim, str(found.count), *seconds)
    console.print(table)
    kinds = ", ".join(f"{count} {kind}" for kind, count in fault_results.by_kind(done).items())
    console.print(
        f"{len(done)} faults ({kinds}), {fault_results.kills(done)} kills; {100 * fault_results.in_flight(done):.0f} % hit work in flight",
        highlight=False,
        soft_wrap=True,
    )


def show(console: Console, done: Sequence[FaultOutcome], results: Results) -> None:
    """Print the results of the whole run."""
    show_recoveries(console, done)
    crashes, figures, again_s = fault_results.kills(done), results.figures, results.figures.spent.again_s
    console.print(
        f"{figures.steps} steps, {figures.groups} groups, {figures.batches} batches; trajectory-seconds generated again: "
        f"{again_s:.1f} of {figures.spent.generated_s:.1f} ({again_s / max(1, crashes):.2f} per kill)\n"
        "  (seconds of generation, at the rollout server, that no stored step of an attempt that counts is made of)",
        highlight=False,
        soft_wrap=True,
    )
    poisoned = results.poisoned
    ends = ", ".join(f"{count} {end}" for end, count in sorted(poisoned.ends.items()))
    fates = ", ".join(f"{count} × {fate}" for fate, count in sorted(poisoned.agents.items()))
    console.print(
        f"{poisoned.messages} poison messages ({ends}), {sum(poisoned.agents.values())} poison agents ({fates}); "
        f"{poisoned.restarts} processes ended because of them",
        highlight=False,
        soft_wrap=True,
    )
    if results.report is not None:
        checks = [check for check in results.report.checks if not check.skipped]
        console.print(
            f"audit of the invariants I1–I7: {results.report.violations} violations in {len(checks)} checks of "
            f"{sum(check.examined for check in checks):,} rows",
            highlight=False,
        )
        for check in results.report.checks:
            for violation in check.violations:
                rows = ", ".join(f"{key}={plain(value)}" for key, value in violation.rows.items())
                console.print(
                    f"  {violation.invariant}: {violation.what}  ({rows})", highlight=False, markup=False
                )
    for problem in results.problems:
        console.print(f"  {problem}", highlight=False, markup=False)


def final_line(
    *,
    seed: int,
    scale: float,
    seconds: float,
    planned: int,
    done: Sequence[FaultOutcome],
    results: Results,
    left_out: Sequence[str],
) -> str:
    """One JSON object. Seconds, shares as fractions."""
    found = fault_results.recoveries(done)
    crashes, again_s = fault_results.kills(done), results.figures.spent.again_s
    return json.dumps(
        {
            "seed": seed,
            "time_scale": scale,
            "kills": crashes,
            "faults": len(done),
            "faults_planned": planned,
            "by_kind": fault_results.by_kind(done),
            "left_out": list(left_out),
            "violations": results.violations,
            "recovery_p50_s": {victim: round(quantiles.p50, 3) for victim, quantiles in found.items()},
            "recovery_p95_s": {victim: round(quantiles.p95, 3) for victim, quantiles in found.items()},
            "recovery_max_s": {victim: round(quantiles.largest, 3) for victim, quantiles in found.items()},
            "generated_trajectory_s": round(results.figures.spent.generated_s, 2),
            "regenerated_trajectory_s": round(again_s, 2),
            "regenerated_per_kill_s": round(again_s / max(1, crashes), 3),
            "in_flight_share": round(fault_results.in_flight(done), 3),
            "steps": results.figures.steps,
            "groups": results.figures.groups,
            "batches": results.figures.batches,
            "poison_messages": dict(results.poisoned.ends),
            "poison_agents": dict(results.poisoned.agents),
            "poison_restarts": results.poisoned.restarts,
            "seconds": round(seconds, 1),
        }
    )
