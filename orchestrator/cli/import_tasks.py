"""penstock tasks import: task sets of other forms as Harbor task directories."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import tables
from orchestrator.cli.bar import busy
from orchestrator.cli.hints import carried
from orchestrator.cli.options import JsonOption, path
from orchestrator.cli.task_limits import counting
from orchestrator.cli.terminal import plain

if TYPE_CHECKING:
    from orchestrator.settings.sandbox import SandboxSection
    from orchestrator.tasks.bundle import BundleLimits
    from orchestrator.tasks.importing.report import Found, Imported


app = typer.Typer(no_args_is_help=True, help="Import task sets of other forms as Harbor task directories.")

GIT_S = 600.0
TASK_S = 3600.0
TEST_S = 1800.0

ToOption = Annotated[
    Path,
    typer.Option("--to", help="The directory for the task directories. Others in it stay.", parser=path),
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The run whose size limits hold, and for whose sandboxes the tasks are checked (default: the defaults).",
        parser=path,
    ),
]
GitOption = Annotated[float, typer.Option(min=1, max=86400, help="Seconds for each call of git.")]


@app.command()
def harbor(
    source: Annotated[
        str, typer.Argument(help="A directory, a git URL (https, ssh, file) or a registry.json.")
    ],
    to: ToOption,
    config: RunOption = None,
    revision: Annotated[
        str | None, typer.Option(help="The commit, branch or tag of a git URL (default: its HEAD).")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The data set of a registry: NAME or NAME@VERSION.")
    ] = None,
    move_key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key of task.toml to move below [metadata] where the format does not know it: KEY or TABLE.KEY; repeatable."
        ),
    ] = None,
    git_timeout_s: GitOption = GIT_S,
    as_json: JsonOption = False,
) -> None:
    """Import Harbor tasks: penstock tasks import harbor https://example.org/tasks.git --to tasks"""
    from orchestrator.tasks.importing import harbor as form
    from orchestrator.tasks.importing.git import Git, is_url

    section, limits, _ = counting(config)
    program = Git(git_timeout_s)
    read = form.reading(limits, move_key or ())
    with ExitStack() as stack:
        if revision is not None and not is_url(source):
            raise ValueError("--revision is about a git URL")
        if dataset is not None and (is_url(source) or not Path(source).is_file()):
            raise ValueError("--dataset is about a registry.json")
        if git_timeout_s != GIT_S and not is_url(source) and Path(source).is_dir():
            raise ValueError("--git-timeout-s is about a git URL or a registry.json")
        with busy("fetch tasks"):
            if is_url(source):
                found = stack.enter_context(form.from_repository(source, revision, program, read))
            elif Path(source).is_file() and Path(source).suffix == ".json":
                found = stack.enter_context(form.from_registry(Path(source), dataset, program, read))
            else:
                found = stack.enter_context(form.from_directory(_apart(path(source), to), read))
        _import(found, to, section, limits, as_json=as_json)


@app.command("terminal-bench")
def terminal_bench(
    source: Annotated[
        Path, typer.Argument(help="A task directory of the older form, or a folder of them.", parser=path)
    ],
    to: ToOption,
    config: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import terminal tasks of the older form, with task.yaml: penstock tasks import terminal-bench downloaded/tasks --to tasks"""
    from orchestrator.tasks.importing import terminal_bench as form

    section, limits, _ = counting(config)
    _import(form.from_directory(_apart(source, to), limits), to, section, limits, as_json=as_json)


@app.command()
def swe(
    source: Annotated[
        Path, typer.Argument(help="Rows of SWE-bench or a relative, as JSON lines.", parser=path)
    ],
    to: ToOption,
    config: RunOption = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="The image of each row, with {instance_id} or {docker_id} (default: the row's own column)."
        ),
    ] = None,
    workdir: Annotated[str, typer.Option(help="The repository's directory in the image.")] = "/testbed",
    repositories: Annotated[
        Path | None,
        typer.Option(
            help="Take the files from the clones in this folder, as OWNER/NAME or OWNER__NAME, and use no image.",
            parser=path,
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="With --repositories: write a Dockerfile that begins with this image."),
    ] = None,
    test_command: Annotated[
        str | None,
        typer.Option(
            help="Runs the tests of every row, with {files} or {modules} (default: the row's test_cmd, else Django's or sympy's runner, else pytest)."
        ),
    ] = None,
    agent_timeout_s: Annotated[float, typer.Option(min=1, max=604800, help="Of one rollout.")] = TASK_S,
    test_timeout_s: Annotated[float, typer.Option(min=60, max=604800, help="Of the tests.")] = TEST_S,
    git_timeout_s: GitOption = GIT_S,
    as_json: JsonOption = False,
) -> None:
    """Import rows of SWE-bench, SWE-smith, SWE-gym or SWE-rebench: penstock tasks import swe rows.jsonl --to tasks --repositories clones"""
    from orchestrator.tasks.importing.git import Git
    from orchestrator.tasks.importing.repository import Repositories
    from orchestrator.tasks.importing.swe import SweOptions, from_rows

    if repositories is not None and image is not None:
        raise ValueError("give --image or --repositories")
    if base is not None and repositories is None:
        raise ValueError("--base is about --repositories")
    options = SweOptions(
        image=image or None,
        workdir=workdir,
        base=base or None,
        command=test_command or None,
        agent_s=agent_timeout_s,
        test_s=test_timeout_s,
    )
    section, limits, _ = counting(config)
    with tempfile.TemporaryDirectory(prefix="penstock-import-") as scratch:
        clones = None
        if repositories is not None:
            clones = Repositories(repositories, Path(scratch), Git(git_timeout_s))
        _import(from_rows(source, options, clones), to, section, limits, as_json=as_json)


def _apart(source: Path, to: Path) -> Path:
    """The source. ValueError if tasks would be written over it, or into a task."""
    at, target = source.resolve(), to.resolve()
    is_task = any((source / name).is_file() for name in ("task.toml", "task.yaml"))
    if target == at or (is_task and target.is_relative_to(at)):
        raise ValueError(
            f"--to {to} is the source, or lies in its task: name a directory apart from {source}"
        )
    return source


def _import(
    found: "Iterable[Found | Imported]",
    to: Path,
    section: "SandboxSection",
    limits: "BundleLimits",
    *,
    as_json: bool,
) -> None:
    """Import, print the report, and end with status 1 if a task was refused."""
    from orchestrator.tasks.importing.place import import_all
    from orchestrator.tasks.importing.report import ImportOutcome

    results: list[Imported] = []
    with busy("import tasks"):
        results += import_all(found, to, section, limits)
    counts = {outcome.value: sum(each.outcome is outcome for each in results) for outcome in ImportOutcome}
    not_run = sum(each.run is not None for each in results)
    if as_json:
        typer.echo(
            json.dumps({**counts, "refused_by_run": not_run, "tasks": [each.to_json() for each in results]})
        )
    else:
        _print(results)
        whole = ", ".join(f"{number} {name}" for name, number in counts.items())
        beyond = f"; {not_run} of them a run with these sandboxes would refuse" if not_run else ""
        typer.echo(f"{whole}{beyond}")
    if counts[ImportOutcome.REFUSED]:
        raise typer.Exit(1)


def _print(results: "list[Imported]") -> None:
    tables.print_rows(
        ["task", "outcome"], [(plain(each.name or each.source), each.outcome) for each in results]
    )
    for each in results:
        named = f"{each.name} ({each.source})" if each.name and each.name not in each.source else each.source
        if each.reason is not None:
            typer.echo(plain(carried(f"{named}: {each.reason}")))
        elif each.run is not None:
            typer.echo(plain(carried(f"{named}: a run would refuse it: {each.run}")))
    for note, number in Counter(each.note for each in results if each.note is not None).items():
        typer.echo(plain(carried(f"{number} tasks: {note}" if number > 1 else f"1 task: {note}")))
