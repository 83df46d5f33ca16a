"""`penstock rewind`: undo the batches after one, and continue from its weights."""

import getpass
import json
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from orchestrator.cli.bar import busy
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.numbers import INT4
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.rewind import Rewound
    from orchestrator.settings.config import Config


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
    as_json: JsonOption = False,
) -> None:
    """Undo every batch after one: its groups are ready again, its versions superseded: penstock rewind --to-batch 7 -c runs/first"""
    signed_reason = f"{getpass.getuser()} at {socket.gethostname()}: {reason}"
    with busy("rewind: the checkpoint is read and checked"):
        done = anyio.run(_rewind, Home.at(config).connected(), to_batch, signed_reason)
    typer.echo(json.dumps(asdict(done)) if as_json else _sentence(done))


async def _rewind(config: "Config", to_batch: int, why: str) -> "Rewound":
    from orchestrator.audit.i6_versions import KnownCheckpoint, faults_of
    from orchestrator.bus import subjects
    from orchestrator.pool.opened import opened_run
    from orchestrator.pool.rewind import rewind, versions_by_batch
    from orchestrator.pool.transact import once

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

        async def work(connection: "AsyncConnection") -> "Rewound":
            subject = subjects.policy(run.name)
            return await rewind(
                connection, run.run_id, to_batch, subject, why, lambda v: Path(v.path).is_dir()
            )

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
