"""penstock tasks: publish, check, generate."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli import complete, tables
from orchestrator.cli.bar import busy, progress
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption
from orchestrator.cli.terminal import plain
from orchestrator.config import SandboxSection
from orchestrator.contracts.states import Purpose
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.tasks.harbor import Task

app = typer.Typer(no_args_is_help=True)


def read(sources: list[Path]) -> "Iterator[Task]":
    """Tasks of directories (one task, or a folder of tasks) and JSONL files. ValueError names the file."""
    from orchestrator.tasks.harbor import iter_jsonl, load

    for source in sources:
        if not source.exists():
            raise ValueError(f"{source} does not exist")
        if source.is_file():
            if source.suffix != ".jsonl":
                raise ValueError(
                    f"{source} is no task: give a task directory, a folder of them, or a .jsonl file"
                )
            yield from iter_jsonl(source)
        elif (source / "task.toml").exists() or (source / "instruction.md").exists():
            yield load(source)
        else:
            found = sorted(path.parent for path in source.glob("*/task.toml"))
            if not found:
                raise ValueError(
                    f"{source} holds no task: a task directory has task.toml, instruction.md and tests/test.sh"
                )
            for directory in found:
                yield load(directory)


def offered(scaffold: str, shares: Mapping[str, float], file: Path) -> str:
    """The name under which the run of `file` knows `scaffold`: registered, or in its shares; a path is looked for here, then beside the file.

    ValueError, one sentence, when it knows none.
    """
    from scaffolds.find import is_path, known

    known_here = dict.fromkeys((*known(), *shares))
    found = [scaffold]
    if is_path(scaffold):
        found += [str(Path(scaffold).resolve()), str((file.parent / scaffold).resolve())]
    for name in found:
        if name in known_here:
            return name
    lies = Path(scaffold.rpartition(":")[0] if ".py:" in scaffold else scaffold)
    if is_path(scaffold) and lies.exists():
        raise ValueError(
            f"--scaffold {scaffold}: the run does not have it; add {json.dumps(str(Path(scaffold).resolve()))} = 0.0"
            f" to rollout.scaffolds of {file} and start the run again"
        )
    raise ValueError(f"--scaffold: unknown scaffold {scaffold!r}; the run knows: {', '.join(known_here)}")


@app.command()
def publish(
    sources: Annotated[
        list[Path], typer.Argument(help="Task directories, folders of them, or .jsonl files.")
    ],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    purpose: Annotated[str, typer.Option(help="train, eval or record.")] = "train",
    label: Annotated[str, typer.Option(help="A name for these submissions, part of their ids.")] = "",
    scaffold: Annotated[
        str,
        typer.Option(
            help="Scaffold for all of them (default: the run's shares).", autocompletion=complete.scaffolds
        ),
    ] = "",
    group_size: Annotated[int, typer.Option(help="Rollouts per task (default: the run's).")] = 0,
    timeout_s: Annotated[
        float, typer.Option(help="Seconds without any answer after which the rest is given up.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Publish tasks and wait until each is accepted: penstock tasks publish suite/train"""
    from orchestrator.bus.nats import NatsBus
    from orchestrator.contracts.events import TaskSubmitted
    from orchestrator.publish import publish_tasks
    from orchestrator.tasks.admit import check_admissible

    if purpose not in list(Purpose):
        raise ValueError(f"unknown purpose {purpose!r}; known: {', '.join(Purpose)}")
    home = Home.at(config, tuple(overrides or ()))
    resolved = home.connected()
    named = offered(scaffold, resolved.rollout.scaffolds, home.file) if scaffold else None
    with busy("read tasks"):
        tasks = list(read(sources))
        for task in tasks:
            check_admissible(task, resolved.sandbox)
    prepared = [
        (
            task.settings.metadata.domain,
            TaskSubmitted(
                task=task.to_message(),
                submission=":".join(part for part in (label, purpose, task.content_hash[:24]) if part),
                purpose=purpose,
                scaffold=named,
                group_size=group_size or None,
                label=label or None,
            ),
        )
        for task in tasks
    ]

    stays: set[str] = set()

    async def work() -> dict[str, tuple[str, str]]:
        async with NatsBus.connect(resolved.services.nats_url, name="penstock-tasks") as bus:
            return await publish_tasks(bus, resolved.run.name, prepared, timeout_s, tick, stays.add)

    with progress(f"publish {len(prepared)} tasks") as tick:
        answers = anyio.run(work)
    rejected = {
        submission: reason for submission, (status, reason) in answers.items() if status == "rejected"
    }
    unanswered = len({event.submission for _, event in prepared}) - len(answers)
    if as_json:
        typer.echo(
            json.dumps(
                {"accepted": len(answers) - len(rejected), "rejected": rejected, "unanswered": unanswered}
            )
        )
    else:
        typer.echo(
            f"{len(answers) - len(rejected)} accepted, {len(rejected)} rejected, {unanswered} unanswered"
        )
        alike: dict[tuple[str, bool], list[str]] = {}
        for submission, reason in rejected.items():
            alike.setdefault((reason, submission in stays), []).append(submission)
        for (reason, old), which in alike.items():
            who = which[0] if len(which) == 1 else f"{len(which)} tasks"
            again = " (answered earlier, and that stays: use another --label)" if old else ""
            typer.echo(plain(f"  {who}: {reason}{again}"), err=True)
    if rejected or unanswered:
        raise typer.Exit(1)


@app.command()
def check(
    sources: Annotated[
        list[Path], typer.Argument(help="Task directories, folders of them, or .jsonl files.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The run whose sandboxes count; without it, the defaults."),
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Read tasks and say what is wrong, without publishing."""
    from orchestrator.tasks.admit import check_admissible

    with busy("read tasks"):
        tasks = list(read(sources))
    section = SandboxSection() if config is None else Home.at(config, tuple(overrides or ())).config().sandbox
    for task in tasks:
        check_admissible(task, section)
    typer.echo(f"{tables.counted(len(tasks), 'task')} {'is' if len(tasks) == 1 else 'are'} well-formed")


@app.command()
def generate(
    directory: Annotated[Path, typer.Argument(help="Where to write train/ and heldout/.")],
    train: Annotated[int, typer.Option(min=0, help="Training tasks.")] = 400,
    heldout: Annotated[int, typer.Option(min=0, help="Held-out tasks.")] = 100,
    seed: Annotated[int, typer.Option(help="The suite's seed.")] = 0,
) -> None:
    """Write the built-in suite of shell tasks: penstock tasks generate suite --train 400 --heldout 100"""
    from orchestrator.tasks.suite import generate as draw

    for target in (directory / "train", directory / "heldout"):
        if target.exists():
            raise ValueError(f"{target} exists already; remove it, or choose another directory")
    for folder, drawn in (("train", draw("train", train, seed)), ("heldout", draw("heldout", heldout, seed))):
        with progress(f"write {folder}") as tick:
            for number, item in enumerate(drawn):
                item.task.write(directory / folder / f"{number:04d}-{item.task.name}")
                tick(number + 1, len(drawn))
    typer.echo(f"{train} training and {heldout} held-out tasks are in {directory}")
