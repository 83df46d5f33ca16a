"""`penstock rewind`: undo the batches after one, and continue from its weights."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from orchestrator.cli.bar import busy
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, path
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.numbers import INT4
from orchestrator.deploy.home import Home
from orchestrator.runtime.person import current_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.rewind import Rewound
    from orchestrator.roles.rescore import Rescored
    from orchestrator.settings.config import Config
    from orchestrator.tasks.harbor import Task


def rewind(
    to_batch: Annotated[
        int,
        typer.Option(
            "--to-batch",
            min=-1,
            max=INT4,
            help="The last batch to keep; -1 keeps none and restores the first weights.",
        ),
    ],
    config: ConfigOption = HERE,
    reason: Annotated[str, typer.Option(help="Stored with each batch that is undone.")] = "no reason given",
    rescore: Annotated[
        bool,
        typer.Option(
            "--rescore",
            help="Also score again every rollout that is then in no batch, before a trainer can take one.",
        ),
    ] = False,
    tests: Annotated[
        list[Path] | None,
        typer.Option(
            "--tests",
            help="As --rescore, but only groups of these tasks, with their corrected tests: a task directory, or a folder of them. Repeatable.",
            parser=path,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Undo every batch after one: its groups are ready again, its versions superseded: penstock rewind --to-batch 7 -c runs/first"""
    from orchestrator.cli.rescore import corrected_tasks, sentence

    if rescore and tests:
        raise ValueError("give --rescore or --tests: corrected tests choose their tasks themselves")
    resolved = Home.at(config).connected()
    corrected = corrected_tasks(resolved, tests) if tests else {} if rescore else None
    signed_reason = f"{current_user()}: {reason}"
    with busy("rewind: the checkpoint is read and checked"):
        done, rescored = anyio.run(_rewind, resolved, to_batch, signed_reason, corrected)
    if as_json:
        typer.echo(json.dumps(asdict(done) | ({"rescored": asdict(rescored)} if rescored else {})))
        return
    typer.echo(_sentence(done))
    if rescored:
        typer.echo(sentence(rescored))


async def _rewind(
    config: "Config", to_batch: int, why: str, corrected: "Mapping[str, Task] | None"
) -> "tuple[Rewound, Rescored | None]":
    """The rewind, and if `corrected` is given the rescore, in one transaction: no trainer claims a freed group with its old verdicts."""
    from orchestrator.audit.i6_versions import KnownCheckpoint, faults_of
    from orchestrator.bus import subjects
    from orchestrator.pool.opened import opened_run
    from orchestrator.pool.rescore import Chosen
    from orchestrator.pool.rewind import rewind, versions_by_batch
    from orchestrator.pool.transact import once
    from orchestrator.roles.rescore import rescore

    async with opened_run(config, name="penstock-rewind") as (engine, run):
        async with engine.connect() as connection:
            target = (await versions_by_batch(connection, run.run_id)).get(to_batch)
        directory = Path(target.path) if target is not None else None
        # Else the rewind reports the reason.
        if target is not None and directory is not None and directory.is_dir():
            published = KnownCheckpoint(manifest_sha=target.manifest_sha, batch_no=target.batch_no)
            # Before the transaction: reading all files takes long.
            faults = await anyio.to_thread.run_sync(lambda: list(faults_of(directory, published)))
            if faults:
                raise ConfigurationError(
                    f"the checkpoint of batch {to_batch} cannot be gone back to: {faults[0]}; choose another batch"
                )

        async def work(connection: "AsyncConnection") -> "tuple[Rewound, Rescored | None]":
            subject = subjects.policy(run.name)
            done = await rewind(
                connection, run.run_id, to_batch, subject, why, lambda v: Path(v.path).is_dir()
            )
            if corrected is None:
                return done, None
            # Else groups of a misspelled task would be free with the verdicts that the rewind is for.
            return done, await rescore(connection, run, Chosen(), why, corrected, of_every_task=True)

        return await once(engine, work, at="person.commit")


def _sentence(done: "Rewound") -> str:
    numbers = ", ".join(map(str, done.batches))
    sentence = (
        f"undone: batch{'es' * (len(done.batches) > 1)} {numbers}; {done.groups} groups are ready again"
    )
    if done.version is None:
        return f"{sentence}; the weights stay what they are"
    superseded = ", ".join(map(str, done.superseded))
    weights = "the first weights" if done.to_batch < 0 else f"the weights of batch {done.to_batch}"
    return f"{sentence}; version {done.version} has {weights} and supersedes {superseded}"


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(rewind)
