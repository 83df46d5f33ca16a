"""penstock tasks vet: the controls of tasks."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.bar import busy, progress
from orchestrator.cli.hints import carried
from orchestrator.cli.options import JsonOption, SetOption, path
from orchestrator.cli.terminal import plain
from orchestrator.contracts.vetting import Level
from orchestrator.deploy.home import Home
from orchestrator.runtime.cores import usable_cores
from orchestrator.settings.sandbox import SandboxSection

if TYPE_CHECKING:
    from orchestrator.settings.config import Config
    from orchestrator.tasks.vetting.report import TaskReport
    from orchestrator.vetting.rows import RunRecords

TIMES = 3


def vet(
    sources: Annotated[
        list[Path], typer.Argument(help="Task directories, folders of them, or .jsonl files.", parser=path)
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The run whose sandboxes are used, and whose rows keep the reports (default: a file next to the tasks).",
            parser=path,
        ),
    ] = None,
    overrides: SetOption = None,
    until: Annotated[Level, typer.Option(help="The level to reach.")] = Level.VETTED,
    times: Annotated[int, typer.Option(min=1, max=100, help="Runs of each control.")] = TIMES,
    jobs: Annotated[int, typer.Option(min=0, help="Sandboxes at once (default: one per core).")] = 0,
    again: Annotated[bool, typer.Option(help="Vet also tasks that have a report.")] = False,
    verdicts: Annotated[
        Path | None,
        typer.Option(
            help="The file of the reports, instead of vetting.jsonl next to the tasks.", parser=path
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the reports as one HTML page, too.", parser=path)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the controls of tasks in sandboxes: the solution earns 1, nothing earns 0, no probe earns anything: penstock tasks vet suite/train"""
    from orchestrator.cli.run_config import print_notes, recorded
    from orchestrator.tasks.bundle import BundleLimits
    from orchestrator.tasks.vetting.page import page
    from orchestrator.vetting.records import sources_of

    section, limits, run = SandboxSection(), BundleLimits(), None
    if config is not None:
        own = Home.at(config, tuple(overrides or ())).config()
        found = recorded(own)
        if found.unknown and verdicts is None:
            raise ValueError(
                f"the reports belong into the run's rows (--verdicts names a file instead): {found.unknown}"
            )
        print_notes(found.notes(own))
        counts = found.config(own)
        section, limits = counts.sandbox, BundleLimits.of(counts.tasks)
        if found.stored is not None and verdicts is None:
            run = Home.at(config, tuple(overrides or ())).connected()
        elif verdicts is None:
            print_notes(["the run does not exist yet: the reports go into a file next to the tasks"])
    elif overrides:
        raise ValueError("--set changes keys of a run's configuration: name it with -c")
    with busy("read tasks"):
        tasks = list(sources_of(sources, limits))
    reports = anyio.run(_vet, tasks, section, run, verdicts, until, times, jobs or usable_cores(), again)
    if html is not None:
        html.write_text(page(reports, until), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([report.to_json() for report in reports]))
    else:
        _print(reports, until)
    if any(report.undecided or not report.level.reaches(until) for report in reports):
        raise typer.Exit(1)


async def _vet(
    tasks: Sequence[tuple[Path, str, object]],
    section: SandboxSection,
    run: "Config | None",
    verdicts: Path | None,
    until: Level,
    times: int,
    jobs: int,
    again: bool,
) -> "list[TaskReport]":
    from orchestrator.tasks.harbor import Task
    from orchestrator.vetting.many import Candidate, vet_all
    from orchestrator.vetting.records import FileRecords, Records, next_to
    from orchestrator.vetting.task import Options, provider_of

    provider = provider_of(section)
    for problem in await provider.problems():
        raise ValueError(f"no sandbox can be opened here: {problem}")
    kept: dict[Path, Records] = {}

    def records(source: Path) -> Records:
        file = verdicts or next_to(source)
        if file not in kept:
            kept[file] = FileRecords(file)
        return kept[file]

    options = Options(section=section, times=times, until=until)
    async with _of_run(run) as rows:
        candidates = [
            Candidate(
                place=place,
                found=found if isinstance(found, Task) else str(found),
                records=rows or records(source),
            )
            for source, place, found in tasks
        ]
        with progress(f"vet {tables.counted(len(candidates), 'task')}") as tick:
            return await vet_all(candidates, provider, options, jobs=jobs, again=again, tick=tick)


@asynccontextmanager
async def _of_run(config: "Config | None") -> "AsyncIterator[RunRecords | None]":
    """The rows of a run; None without one."""
    if config is None:
        yield None
        return
    from orchestrator.pool.opened import opened_run
    from orchestrator.vetting.rows import RunRecords

    async with opened_run(config, size=2, name="penstock-vet") as (engine, run):
        yield RunRecords(engine, run.run_id)


def _print(reports: "Sequence[TaskReport]", until: Level) -> None:
    rows = [
        (
            report.name,
            "undecided" if report.undecided else report.level,
            ", ".join(report.faults),
            f"{report.seconds:.0f}",
        )
        for report in reports
    ]
    tables.print_rows(["task", "level", "faults", "s"], rows)
    for report in reports:
        if report.undecided:
            typer.echo(plain(f"{report.name}: not decided, run the command again: {report.undecided}"))
        for finding in report.findings:
            typer.echo(plain(f"{report.name}: {finding.control} {finding.fault}: {finding.says}"))
            typer.echo(plain(f"    remedy: {carried(finding.what_to_do)}"))
    if kept := sorted(report.at for report in reports if report.kept):
        since = f", the oldest of {kept[0]}" if kept[0] else ""
        typer.echo(f"{tables.counted(len(kept), 'kept report')}{since}: --again vets such tasks again")
    reached = sum(report.level.reaches(until) and not report.undecided for report in reports)
    typer.echo(f"{reached} of {tables.counted(len(reports), 'task')} reach {until}")


def register(app: typer.Typer) -> None:
    """Add this command to `penstock tasks`."""
    app.command()(vet)
