"""penstock tasks: publish, check, generate."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli import shell_completion, tables
from orchestrator.cli.answers import Answers
from orchestrator.cli.bar import busy, progress, publishing
from orchestrator.cli.hints import carried
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption, path
from orchestrator.cli.task_levels import below_required
from orchestrator.cli.task_limits import counting
from orchestrator.cli.task_notes import notes as notes_of
from orchestrator.cli.terminal import plain
from orchestrator.contracts.ids import DOMAIN_RULE
from orchestrator.contracts.numbers import INT2
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from orchestrator.settings.sandbox import SandboxSection
    from orchestrator.tasks.harbor import Task

app = typer.Typer(no_args_is_help=True)


def renamed(tasks: "Iterable[Task]") -> str:
    """A sentence about tasks whose own domain is not a valid name; empty: there are none."""
    from orchestrator.tasks.sizes import read_task_toml

    differing = []
    for task in tasks:
        domain = read_task_toml(task.files["task.toml"].data.decode()).get("metadata", {}).get("domain")
        if domain is not None and domain != task.settings.metadata.domain:
            differing.append(domain)
    if not differing:
        return ""
    return (
        f"{tables.counted(len(differing), 'task')} with a [metadata].domain such as {differing[0]!r:.60}, which cannot be the name of one "
        f"({DOMAIN_RULE}): general, unless --domain says another"
    )


@app.command()
def publish(
    sources: Annotated[
        list[Path], typer.Argument(help="Task directories, folders of them, or .jsonl files.", parser=path)
    ],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    purpose: Annotated[str, typer.Option(help="train, eval or record.")] = Purpose.TRAIN,
    label: Annotated[
        str | None, typer.Option(help="A name for these submissions, part of their ids.")
    ] = None,
    scaffold: Annotated[
        str | None,
        typer.Option(
            help="Scaffold for all of them (default: the run's shares).",
            autocompletion=shell_completion.scaffolds,
        ),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, max=INT2, help="Rollouts per task (default: the run's).")
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            help="Domain for all of them (default: [metadata].domain, or that of its category in tasks.domains, else general).",
            autocompletion=shell_completion.domains,
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Give up after this many seconds without any answer.")
    ] = 60.0,
    verdicts: Annotated[
        Path | None,
        typer.Option(
            help="The reports of `penstock tasks vet` (default: vetting.jsonl next to the tasks).",
            parser=path,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish tasks and wait until each is accepted: penstock tasks publish suite/train"""
    from orchestrator.bus.nats import NatsBus
    from orchestrator.cli.run_config import OF_PUBLISHING, print_notes, recorded
    from orchestrator.publish import (
        Answer,
        PublishOptions,
        blobs_of,
        offered_scaffold,
        publish_tasks,
        read_purpose,
    )
    from orchestrator.tasks.bundle import BundleLimits
    from orchestrator.tasks.sources import admissible, each, together
    from orchestrator.tasks.unfit import drawn
    from orchestrator.vetting.required import check_required, filed

    options = PublishOptions(
        purpose=read_purpose(purpose),
        label=label or None,
        group_size=group_size or None,
        domain=domain or None,
    )
    home = Home.at(config, tuple(overrides or ()))
    resolved = home.connected()
    run = recorded(resolved)
    own = run.config(resolved)
    notes = run.notes(resolved, OF_PUBLISHING)
    if run.unknown is None:  # which keys of the file do not count
        print_notes(notes)
    check_required(own.tasks.require, resolved.tasks.require)
    if scaffold is not None:
        options = replace(options, scaffold=offered_scaffold(scaffold, own.rollout.scaffolds, home.file))
    options = replace(options, domains=own.tasks.domains)
    with busy("read tasks"):
        found_at = each(sources, BundleLimits.of(own.tasks))
        scaffolds = (options.scaffold,) if options.scaffold else drawn(own.rollout.scaffolds)
        tasks, problems = admissible(found_at, own.sandbox, scaffolds)
        levels = filed(sources, verdicts)
    problems += [(each,) for each in below_required(own, tasks, levels)]
    if problems:
        raise ValueError(together(problems, "nothing is published"))
    prepared = [options.event(task, levels.get(task.content_hash)) for task in tasks]
    stays: set[str] = set()

    async def work() -> dict[str, Answer]:
        async with NatsBus.connect(resolved.services.nats_url, name="penstock-tasks") as bus:
            return await publish_tasks(
                bus,
                resolved.run.name,
                prepared,
                timeout_s,
                bars.tasks,
                stays.add,
                blobs=blobs_of(tasks),
                sent=bars.sent,
            )

    with publishing(f"publish {len(prepared)} tasks") as bars:
        answers = anyio.run(work)
    if run.unknown is not None:
        print_notes(notes)
    found = Answers.of(len({event.submission for _, event in prepared}), answers, stays)
    task_notes = list(notes_of(tasks, own.sandbox))
    domain_note = renamed(tasks) if domain is None else None
    if as_json:
        shown = [domain_note, *task_notes] if domain_note else task_notes
        typer.echo(json.dumps({**found.counts(), "notes": shown}))
    else:
        typer.echo(found.summary())
        for line in found.reasons():
            typer.echo(plain(f"  {line}"), err=True)
        if found.already and (scaffold is not None or group_size):
            note = "what was accepted already keeps its scaffold and group size: publish it again with another --label"
            typer.echo(note, err=True)
        if domain_note:
            typer.echo(plain(domain_note), err=True)
        for note in task_notes:
            typer.echo(plain(carried(note)), err=True)
    if not found.complete:
        raise typer.Exit(1)


@app.command()
def check(
    sources: Annotated[
        list[Path], typer.Argument(help="Task directories, folders of them, or .jsonl files.", parser=path)
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The run whose sandbox settings and scaffolds are used: those it started with, else its file's (default: the defaults).",
            parser=path,
        ),
    ] = None,
    overrides: SetOption = None,
    strict: Annotated[bool, typer.Option(help="Exit status 1 if there is any warning.")] = False,
    build: Annotated[
        bool,
        typer.Option(help="Also build what is to be built, and run the tests once: do they need a network?"),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check tasks without publishing them; warn of tests that give a reward without the work: penstock tasks check suite/train --strict"""
    from orchestrator.tasks.sources import admissible, each, together
    from orchestrator.tasks.traps import traps_of

    section, limits, scaffolds = counting(config, tuple(overrides or ()))
    with busy("read tasks"):
        found = list(each(sources, limits))
        tasks, problems = admissible(found, section, scaffolds)
    if build:
        tasks, more = _built(found, tasks, section)
        problems += [(each,) for each in more]
    with busy("read their tests"):
        places = {id(task): place for place, task in found}
        traps = [(task.called(places[id(task)]), trap) for task in tasks for trap in traps_of(task)]
    notes = [*filter(None, (renamed(tasks), *notes_of(tasks, section)))]
    if as_json:
        warnings = [
            {
                "task": name,
                "file": trap.file,
                "line": trap.line,
                "rule": trap.rule,
                "says": trap.says,
                "safe": trap.safe,
                "text": trap.text,
            }
            for name, trap in traps
        ]
        found_in = {
            "tasks": len(tasks),
            "warnings": warnings,
            "notes": notes,
            "problems": [*chain(*problems)],
        }
        typer.echo(json.dumps(found_in))
    else:
        for name, trap in traps:
            typer.echo(plain(f"{name}: {trap.file} line {trap.line}: {trap.rule} {trap.says}"))
            typer.echo(plain(f"    {trap.text:.110}"))
            typer.echo(plain(f"    safe: {trap.safe}"))
        for note in notes:
            typer.echo(plain(carried(note)), err=True)
    if problems:
        raise ValueError(together(problems, f"{tables.counted(len(tasks), 'other task')} well-formed"))
    if traps and strict:
        if not as_json:
            typer.echo(f"{tables.counted(len(traps), 'warning')}: refused by --strict", err=True)
        raise typer.Exit(1)
    if as_json:
        return
    if traps:
        typer.echo(f"{tables.counted(len(traps), 'warning')}: ops/guides/traps.md")
    builds = f", {'builds' if len(tasks) == 1 else 'build'} and {'needs' if len(tasks) == 1 else 'need'} no network to be graded"
    typer.echo(
        f"{tables.counted(len(tasks), 'task')} {'is' if len(tasks) == 1 else 'are'} well-formed{builds if build else ''}"
    )


def _built(
    found: "list[tuple[str, Task | str]]", tasks: "list[Task]", section: "SandboxSection"
) -> "tuple[list[Task], list[str]]":
    """Those of `tasks` that build and are graded without a network, and a sentence for each of the others."""
    from orchestrator.vetting.built import problems_of
    from orchestrator.vetting.task import provider_of

    admitted = {id(task) for task in tasks}
    placed = [(place, task) for place, task in found if not isinstance(task, str) and id(task) in admitted]
    with progress(f"build and try {tables.counted(len(placed), 'task')}") as tick:
        problems = anyio.run(problems_of, placed, provider_of(section), section, tick)
    return [task for place, task in placed if place not in problems], list(problems.values())


@app.command()
def generate(
    directory: Annotated[Path, typer.Argument(help="Where to write train/ and heldout/.", parser=path)],
    train: Annotated[int, typer.Option(min=0, help="Training tasks.")] = 400,
    heldout: Annotated[int, typer.Option(min=0, help="Held-out tasks.")] = 100,
    seed: Annotated[int, typer.Option(help="The suite's seed.")] = 0,
) -> None:
    """Write the built-in suite of shell tasks: penstock tasks generate suite --train 400 --heldout 100"""
    from orchestrator.tasks.suite import generate as draw

    if not train and not heldout:
        raise ValueError("--train 0 --heldout 0 makes no tasks: give one of them a number from 1")
    for target in (directory / "train", directory / "heldout"):
        if target.exists():
            raise ValueError(f"{target} exists already; remove it, or choose another directory")
    for folder, drawn in (("train", draw("train", train, seed)), ("heldout", draw("heldout", heldout, seed))):
        with progress(f"write {folder}") as tick:
            for number, item in enumerate(drawn):
                item.task.write(directory / folder / f"{number:04d}-{item.task.name}")
                tick(number + 1, len(drawn))
    typer.echo(f"{train} training and {heldout} held-out tasks are in {directory}")
