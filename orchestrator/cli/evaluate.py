"""penstock eval: held-out tasks on a policy version, during training; results over versions."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.bar import progress
from orchestrator.cli.options import COUNTER, HERE, ConfigOption, JsonOption, path
from orchestrator.cli.task_levels import below_required
from orchestrator.cli.terminal import cell, plain
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.contracts.ids import EVERY_DOMAIN
from orchestrator.contracts.numbers import INT2, INT4, whole
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import FilterReason
from orchestrator.deploy.home import Home
from orchestrator.runtime.figures import sparkline

if TYPE_CHECKING:
    from orchestrator.contracts.vetting import Vetting
    from orchestrator.queries.evaluations import Evaluation, EvaluationPoint, Unscored

app = typer.Typer(no_args_is_help=True)
NEWEST = "newest"

PolicyOption = Annotated[str, typer.Option("--policy", help="Policy version, or newest.")]


@app.callback(invoke_without_command=True)
def evaluate(
    context: typer.Context,
    suite: Annotated[
        Path | None,
        typer.Option(help="Folder of held-out tasks, one task directory, or a .jsonl file.", parser=path),
    ] = None,
    policy: PolicyOption = NEWEST,
    label: Annotated[
        str | None, typer.Option(help="Name of the suite in the results (default: its folder's or file's).")
    ] = None,
    rollouts: Annotated[int, typer.Option(min=1, max=INT2, help="Tries per task.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Temperature 0 instead of the run's.")] = False,
    scaffold: Annotated[
        str | None, typer.Option(help="Scaffold for all tasks (default: the run's shares).")
    ] = None,
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a policy version on held-out tasks: penstock eval --suite suite/heldout --policy 7 -c runs/first

    It trains nothing and takes no place in the training queue. The same command with the same version continues an interrupted
    evaluation (with --policy newest, the version and that command are printed first); when it is complete, it prints the result.
    Exit status 1: some rollouts have no verdict. See also: penstock eval list, penstock eval show NAME.
    """
    if context.invoked_subcommand is not None:
        return
    if suite is None:
        raise ConfigurationError(
            "--suite names no held-out tasks: penstock eval --suite suite/heldout --policy 7"
        )
    from orchestrator.cli.run_config import OF_PUBLISHING, print_notes, recorded
    from orchestrator.evaluation import EvaluationRequest
    from orchestrator.tasks.bundle import BundleLimits
    from orchestrator.tasks.sources import admissible, each, together
    from orchestrator.tasks.unfit import drawn
    from orchestrator.vetting.required import check_required, filed

    home = Home.at(config)
    request = EvaluationRequest(
        suite=name_of_suite(suite) if label is None else label,
        version=_version(policy),
        rollouts=rollouts,
        greedy=greedy,
        scaffold=scaffold or None,
    )
    file_config = home.connected()
    run = recorded(file_config)
    counts = run.config(file_config)
    found_at = list(each([suite], BundleLimits.of(counts.tasks)))
    if run.unknown is not None:
        raise PenstockError(run.unknown)
    print_notes(run.notes(file_config, OF_PUBLISHING))
    check_required(counts.tasks.require, file_config.tasks.require, "nothing is evaluated")
    offered = (scaffold,) if scaffold else drawn(counts.rollout.scaffolds)
    tasks, problems = admissible(found_at, counts.sandbox, offered)
    levels = filed([suite])
    problems += [(each,) for each in below_required(counts, tasks, levels)]
    if problems:
        raise ValueError(together(problems, "nothing is evaluated"))

    def resolved(version: int) -> None:
        if policy != NEWEST:
            return
        arguments = ["penstock", "eval", "--suite", str(suite), "--policy", str(version)]
        arguments += ["--label", label] if label is not None else []
        arguments += ["--rollouts", str(rollouts)] * (rollouts != 1) + ["--greedy"] * greedy
        arguments += ["--scaffold", scaffold] if scaffold is not None else []
        arguments += ["-c", str(config)]
        notice = f"the newest policy version is {version}; if this is interrupted, it goes on with: {shlex.join(arguments)}"
        typer.echo(plain(notice), err=True)

    with progress(f"eval {plain(request.suite)}") as tick:
        found, reasons = anyio.run(partial(_evaluate, home, tasks, request, tick, resolved, levels))
    if as_json:
        typer.echo(json.dumps({**_plain(found), "reasons": _counted(reasons)}))
    else:
        _show(found, reasons)
    if not found.complete:
        raise typer.Exit(1)


def name_of_suite(suite: Path) -> str:
    """The name of a suite in the results: its folder's, or its file's without `.jsonl`."""
    place = suite.resolve()
    return place.name if place.is_dir() else place.name.removesuffix(".jsonl")


@app.command("list")
def list_(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """List every suite and version that was evaluated: penstock eval list -c runs/first"""
    found, _ = anyio.run(partial(_read, Home.at(config), None, None))
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in found]))
        return
    table = Table(
        "suite", "version", "groups", "scored", "no result", "open", "judged", "success of the judged"
    )
    for each in found:
        overall = next((point for point in each.points if point.domain == EVERY_DOMAIN), None)
        table.add_row(
            cell(each.suite),
            str(each.version) + ("" if each.superseded_by is None else ", undone"),
            str(each.groups),
            str(each.scored),
            str(each.unscored),
            str(each.open),
            f"{each.judged} of {each.rollouts}",
            _percent(overall) if overall else "-",
        )
    tables.print_table(table)


@app.command()
def show(
    suite: Annotated[str, typer.Argument(help="Name of the suite, as in `penstock eval list`.")],
    policy: Annotated[
        int | None,
        typer.Option("--policy", parser=COUNTER, metavar="NUMBER", help="Only this policy version."),
    ] = None,
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show success per domain over policy versions: penstock eval show heldout -c runs/first

    Exit status 1: some rollouts have no verdict.
    """
    home = Home.at(config)
    found, reasons = anyio.run(partial(_read, home, suite, policy))
    if not found:
        of_version = "" if policy is None else f" of version {policy}"
        raise ConfigurationError(
            f"no evaluation {quoted(suite)}{of_version} is there: see penstock eval list{home.option}"
        )
    counting = [each for each in found if each.superseded_by is None]
    if as_json:
        shown = [{**_plain(each), "reasons": _counted(reasons[each.version])} for each in found]
        typer.echo(json.dumps(shown))
    else:
        for each in found:
            _show(each, reasons[each.version])
        if len(counting) > 1:
            _curves(counting)
    if not all(each.complete for each in counting or found):
        raise typer.Exit(1)


async def _evaluate(
    home: Home,
    tasks: Sequence[Any],
    request: Any,
    tick: Callable[[int, int], None],
    resolved: Callable[[int], None],
    levels: "Mapping[str, Vetting]",
) -> "tuple[Evaluation, list[Unscored]]":
    from orchestrator.evaluation import connected

    def waits(sentence: str) -> None:
        typer.echo(plain(sentence), err=True)

    async with connected(home) as bench:
        found = await bench.evaluate(tasks, request, tick, resolved, waits, levels)
        return found, await bench.unscored(found)


async def _read(
    home: Home, suite: str | None, version: int | None
) -> "tuple[list[Evaluation], dict[int, list[Unscored]]]":
    """The evaluations, and for one suite by version why groups have no result."""
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened_run
    from orchestrator.queries.evaluations import evaluations, unscored

    config = home.reading()
    async with (
        opened_run(config, Role.READER, name="penstock-eval") as (engine, run),
        engine.connect() as connection,
    ):
        found = await evaluations(connection, run.run_id, suite=suite, version=version)
        if suite is None:
            return found, {}
        return found, {
            each.version: await unscored(connection, run.run_id, suite, each.version) for each in found
        }


def _version(given: str) -> int | None:
    if given == NEWEST:
        return None
    try:
        return whole(given)
    except ValueError:
        raise ConfigurationError(
            f"--policy {quoted(given)} is not a policy version: write a number from 0 to {INT4}, or newest"
        ) from None


def _plain(found: "Evaluation") -> dict[str, Any]:
    fields = {**asdict(found), "complete": found.complete, "without_verdict": found.without_verdict}
    for name in ("first", "last"):
        fields[name] = fields[name].isoformat() if fields[name] is not None else None
    return fields


def _percent(point: "EvaluationPoint") -> str:
    return f"{point.successes}/{point.n} = {100 * point.success:.1f} % [{100 * point.low:.1f}, {100 * point.high:.1f}]"


def _show(found: "Evaluation", why: "Sequence[Unscored]" = ()) -> None:
    table = Table(
        "domain", "judged", "success of the judged, 95 % interval", "mean performance", title_justify="left"
    )
    undone = "" if found.superseded_by is None else ", which a rewind undid"
    table.title = cell(f"{found.suite} on policy version {found.version}{undone}")
    for domain in sorted({each.domain for each in found.left_out} - {point.domain for point in found.points}):
        table.add_row(cell(domain), "none", "-", "-")
    for point in found.points:
        if point.domain == EVERY_DOMAIN:
            table.add_section()
        judged = f"{point.n} of {point.wanted}"
        table.add_row(cell(point.domain), judged, _percent(point), f"{point.mean:.3f}")
    tables.print_table(table)
    if found.left_out:
        without = ", ".join(plain(f"{n} {reason}") for reason, n in found.without_verdict.items())
        typer.echo(
            f"{sum(found.without_verdict.values())} of {found.rollouts} rollouts have no verdict: {without}. "
            f"The shares and intervals are of the {found.judged} judged ones"
        )
    if found.open:
        typer.echo(f"{found.open} of {found.groups} groups are open")
    if found.unscored:
        typer.echo(f"{found.unscored} of {found.groups} groups gave no result: {_reasons(why)}")
        if any(each.reason == FilterReason.WRONG_VERSION for each in why):
            typer.echo(
                f"wrong_version: training published a version during the evaluation, and the servers left version {found.version}; "
                "servers.evaluation = 1 reserves one for evaluations (ops/guides/evaluations.md)"
            )


def _counted(why: "Sequence[Unscored]") -> dict[str, int]:
    return {each.reason: each.groups for each in why}


def _reasons(why: "Sequence[Unscored]") -> str:
    """How often each reason occurred, as one line."""
    return ", ".join(plain(f"{each.groups} {each.reason}") for each in why)


def _curves(found: "Sequence[Evaluation]") -> None:
    """Success by domain over versions, a line each. A version without a verdict is a gap."""
    domains = sorted(
        {point.domain for each in found for point in each.points},
        key=lambda name: (name == EVERY_DOMAIN, name),
    )
    table = Table("domain", f"success over versions {found[0].version} to {found[-1].version}", "")
    for domain in domains:
        points = [next((point for point in each.points if point.domain == domain), None) for each in found]
        line = sparkline([point.success if point else None for point in points])
        table.add_row(
            cell(domain), line, " ".join(f"{point.success:.2f}" if point else "-" for point in points)
        )
    tables.print_table(table)
    if gaps := [f"{each.version} ({each.judged} of {each.rollouts})" for each in found if not each.complete]:
        typer.echo(f"not every rollout was judged on version {', '.join(gaps)}")
