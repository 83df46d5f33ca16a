"""The demo's final report: a table, a curve, three questions in SQL, one line of JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.lab.demo.outcome import (
    LOST,
    TRAINED_TWICE,
    DemoOutcome,
    Results,
)
from ops.lab.demo.phases import Evaluation
from ops.lab.demo.targets import DemoTarget, bars, change
from orchestrator.audit import Report
from orchestrator.queries.evaluations import EvaluationPoint
from orchestrator.runtime.figures import sparkline


def percent(point: EvaluationPoint | None) -> str:
    """`52/200 = 26.0 % [20.4, 32.5]`; `0/0` without a verdict."""
    if point is None:
        return "0/0"
    return f"{point.successes}/{point.n} = {100 * point.success:.1f} % [{100 * point.low:.1f}, {100 * point.high:.1f}]"


def print_table(console: Console, table: Table) -> None:
    """Print with boxes on a terminal; elsewhere the plain columns, two spaces apart, at their full width."""
    if console.is_terminal:
        console.print(table)
        return
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    for line in filter(None, (str(table.title or ""), *lines, str(table.caption or ""))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def show(console: Console, directory: Path, found: Results, *, control: bool = False) -> None:
    """Print the report; the curve is written into `directory`."""
    curve = directory / "curve.png"
    draw_curve(found.run, found.before, found.after, curve)
    show_evaluations(console, found.before, found.after, (found.greedy_before, found.greedy_after))
    show_outcome(console, found.run)
    show_audit(console, found.audit)
    show_bars(console, bars(found, control=control))
    console.print(
        f"everything lies in {directory}: checkpoint {found.run.checkpoint}, curve {curve.name}, logs .penstock/logs\n"
        f"look further: penstock up -c {directory} --only web   and, besides its dashboard,   "
        f'penstock audit -c {directory} --json   or   penstock sql -c {directory} "select …"',
        highlight=False,
        soft_wrap=True,
    )


def show_evaluations(
    console: Console, before: Evaluation, after: Evaluation, greedy: tuple[Evaluation, Evaluation]
) -> None:
    """Held-out success by domain, before and after, with 95 % intervals."""
    table = Table(
        "held-out success",
        f"before (version {before.version})",
        f"after (version {after.version})",
        title="T = 1",
    )
    for domain in before.domains:
        table.add_row(domain, percent(before.points[domain]), percent(after.points.get(domain)))
    table.add_section()
    table.add_row("all", percent(before.all), percent(after.all))
    table.add_row("greedy", percent(greedy[0].all), percent(greedy[1].all))
    print_table(console, table)
    for each in (before, after, *greedy):
        if each.judged < each.wanted:
            console.print(
                f"{each.label}: {each.wanted - each.judged} of {each.wanted} rollouts have no verdict and are in no share",
                highlight=False,
                soft_wrap=True,
            )


def show_outcome(console: Console, run: DemoOutcome) -> None:
    """The run's figures and the three questions."""
    line = sparkline([reward for _, reward in run.curve])
    values = " ".join(f"{reward:.2f}" for _, reward in run.curve)
    console.print(f"training reward by tenths of the run  {line}  {values}", highlight=False, soft_wrap=True)
    console.print(
        f"{run.train_steps} train steps, {run.groups} groups, {run.rollouts} rollouts ({run.blackbox} black-box), {run.steps} steps; "
        f"tokens stored {run.tokens_stored}, naive {run.tokens_naive} ({run.tokens_naive / max(run.tokens_stored, 1):.1f}x); "
        f"merge ratio in training {run.merge_ratio:.2f}",
        highlight=False,
        soft_wrap=True,
    )
    known = {":run": str(run.run_id), ":ledger": f"<the {run.ledger} names in ledger.txt>"}
    for statement, value in ((LOST, run.lost), (TRAINED_TWICE, run.trained_twice)):
        query = re.sub(r"(?<!:):(?:run|ledger)\b", lambda found: known[found[0]], " ".join(statement.split()))
        console.print(Text(query, style="dim"), soft_wrap=True)
        console.print(f"  = {value}", highlight=False)
    for question, statement, columns, rows in run.answers:
        table = Table(
            *columns, title=question, title_justify="left", caption=statement, caption_justify="left"
        )
        for row in rows:
            table.add_row(*(str(value) for value in row))
        print_table(console, table)


def show_audit(console: Console, found: Report) -> None:
    """Print one line, and one per violation."""
    checks = [check for check in found.checks if not check.skipped]
    console.print(
        f"audit of the invariants I1–I7: {found.violations} violations in {len(checks)} checks of "
        f"{sum(check.examined for check in checks):,} rows ({found.seconds:.1f} s; again: penstock audit)",
        highlight=False,
        soft_wrap=True,
    )
    for check in found.checks:
        for violation in check.violations:
            console.print(
                f"  {violation.invariant}: {violation.what}", highlight=False, markup=False, soft_wrap=True
            )


def show_bars(console: Console, held: Sequence[DemoTarget]) -> None:
    """Print one line per bar."""
    for bar in held:
        interval = f" [{100 * bar.interval[0]:+.1f}, {100 * bar.interval[1]:+.1f}]" if bar.interval else ""
        value = f"{100 * bar.value:+.1f} points{interval}" if bar.interval else f"{bar.value:g}"
        console.print(
            f"{bar.name}: {value}, target {bar.target}: {'holds' if bar.holds else 'MISSED'}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def draw_curve(run: DemoOutcome, before: Evaluation, after: Evaluation, file: Path) -> None:
    """A PNG of training reward over the run, with held-out success before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(
        [tenth / 10 for tenth, _ in run.curve],
        [reward for _, reward in run.curve],
        marker="o",
        label="training reward",
    )
    for evaluation, x in ((before, 0.0), (after, 1.05)):
        point = evaluation.all
        if point is None:
            continue
        axes.errorbar(
            [x],
            [point.success],
            [[point.success - point.low], [point.high - point.success]],
            fmt="s",
            capsize=4,
            color="black",
        )
    axes.set(xlabel="share of the run's rollouts", ylabel="success", ylim=(0, 1), title="Penstock demo")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def final_line(
    *, seed: int, control: bool, setup_s: float, policy_s: float, began: float, found: Results
) -> str:
    """One JSON object: success as fractions, seconds, counts of purpose train; `bars` has the conditions and whether they hold.
    `began`: when the command started, seconds since the epoch. start_s is the time from then to the first rollout, first_step_s to the first
    recorded completion; both include set-up and policy."""
    run, before, after = found.run, found.before, found.after
    gain, interval = change(before, after)
    return json.dumps(
        {
            "seed": seed,
            "control": control,
            "setup_s": round(setup_s, 1),
            "policy_s": round(policy_s, 1),
            "start_s": round(run.first_attempt - began, 1),
            "first_step_s": round(run.first_step - began, 1),
            "run_s": round(found.run_s, 1),
            "eval_s": round(before.seconds + after.seconds, 1),
            "train_steps": run.train_steps,
            "groups": run.groups,
            "rollouts": run.rollouts,
            "blackbox_rollouts": run.blackbox,
            "steps": run.steps,
            "eval_n": min(before.judged, after.judged),
            "eval_before": _success(before),
            "eval_after": _success(after),
            "eval_before_ci": _interval(before),
            "eval_after_ci": _interval(after),
            "eval_gain": round(gain, 4),
            "eval_gain_ci": [round(x, 4) for x in interval],
            "tokens_stored": run.tokens_stored,
            "tokens_naive": run.tokens_naive,
            "merge_ratio": round(run.merge_ratio, 3),
            "lost": run.lost,
            "trained_twice": run.trained_twice,
            "violations": found.audit.violations,
            "checkpoint": run.checkpoint,
            "greedy_before": _success(found.greedy_before),
            "greedy_after": _success(found.greedy_after),
            "eval_blackbox": after.blackbox,
            "eval_by_domain": {
                domain: [*_counts(before.points[domain]), *_counts(after.points.get(domain))]
                for domain in before.domains
            },
            "bars": [asdict(bar) for bar in bars(found, control=control)],
        }
    )


def _success(found: Evaluation) -> float:
    return found.all.success if found.all else 0.0


def _interval(found: Evaluation) -> list[float]:
    return [round(found.all.low, 4), round(found.all.high, 4)] if found.all else [0.0, 1.0]


def _counts(point: EvaluationPoint | None) -> tuple[int, int]:
    """(successes, n)."""
    return (point.successes, point.n) if point else (0, 0)
