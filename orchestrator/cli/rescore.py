"""`penstock rescore`: new verdicts for groups that are in no batch."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli import shell_completion
from orchestrator.cli.bar import busy
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, path
from orchestrator.deploy.home import Home
from orchestrator.runtime.person import current_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.rescore import Chosen
    from orchestrator.roles.rescore import Rescored
    from orchestrator.settings.config import Config
    from orchestrator.tasks.harbor import Task


def rescore(
    config: ConfigOption = HERE,
    domains: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            help="Only groups of this domain. Repeatable.",
            autocompletion=shell_completion.domains,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="Only groups of the task of this name. Repeatable.")
    ] = None,
    tests: Annotated[
        list[Path] | None,
        typer.Option(
            "--tests",
            help="A task directory, or a folder of them, whose tests were fixed: only groups of these tasks, with these tests. Repeatable.",
            parser=path,
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Stored with each rollout.")] = "no reason given",
    as_json: JsonOption = False,
) -> None:
    """Score again the rollouts that are in no batch yet: penstock rescore --domain coding --tests suite/corrected -c runs/first"""
    from orchestrator.pool.rescore import Chosen

    if tasks and tests:
        raise ValueError("give --task or --tests: corrected tests choose their tasks themselves")
    resolved = Home.at(config).connected()
    repaired = corrected_tasks(resolved, tests or [])
    chosen = Chosen(tuple(domains or ()), tuple(tasks or ()))
    signed_reason = f"{current_user()}: {reason}"
    with busy("rescore"):
        done = anyio.run(_rescore, resolved, chosen, signed_reason, repaired)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    typer.echo(sentence(done))


def corrected_tasks(config: "Config", tests: "Sequence[Path]") -> "dict[str, Task]":
    """The tasks of these directories, by name. Keys of the file that the run does not follow are named. Raises ValueError for a task that cannot
    be read."""
    from orchestrator.cli.run_config import OF_TASKS, print_notes, recorded
    from orchestrator.tasks.bundle import BundleLimits
    from orchestrator.tasks.sources import read

    run = recorded(config)
    if run.unknown is None:  # else the command itself fails, with the same reason
        print_notes(run.notes(config, OF_TASKS))
    return {task.name: task for task in read(tests, BundleLimits.of(run.config(config).tasks))}


def sentence(done: "Rescored") -> str:
    """The numbers of a rescore as a sentence."""
    left = ", ".join(f"{n} {state}" for state, n in done.left_alone.items())
    return f"{done.rollouts} rollouts of {done.groups} groups are judged again; left alone: {left or 'none'}"


async def _rescore(
    config: "Config", chosen: "Chosen", why: str, corrected: "Mapping[str, Task]"
) -> "Rescored":
    from orchestrator.pool.opened import opened
    from orchestrator.pool.runs import get_run
    from orchestrator.pool.transact import once
    from orchestrator.roles.rescore import rescore

    async with opened(config.services.database_url, name="penstock-rescore") as engine:

        async def work(connection: "AsyncConnection") -> "Rescored":
            run = await get_run(connection, config.run.name)
            return await rescore(connection, run, chosen, why, corrected)

        return await once(engine, work, at="person.commit")


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(rescore)
