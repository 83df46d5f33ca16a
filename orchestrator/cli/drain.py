"""`penstock drain`: ask a runner, a gateway or a rollout server to take nothing new, so that it may be stopped without losing work."""

import json
import sys
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from orchestrator.cli import interrupt
from orchestrator.cli.bar import busy
from orchestrator.cli.dead import NO_REASON, ReasonOption, whoever
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.reading import reading
from orchestrator.config import Config
from orchestrator.contracts.errors import PenstockError
from orchestrator.home import Home

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.draining import Drainable

LOOK_S = 0.5


class Kind(StrEnum):
    """What can be drained; a verifier runner is a runner."""

    RUNNER = "runner"
    GATEWAY = "gateway"
    SERVER = "server"


def drain(
    kind: Annotated[
        Kind, typer.Argument(help="runner (a verifier too), gateway or server (a rollout server).")
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Its name, NAME@HOST where several hosts have one, or a server's URL."
        ),
    ],
    config: ConfigOption = HERE,
    undo: Annotated[bool, typer.Option("--undo", help="Let it work again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is drained; Ctrl-C ends the waiting, not the order.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Also the last rollout server: calls are held until it works again.")
    ] = False,
    reason: ReasonOption = NO_REASON,
    as_json: JsonOption = False,
) -> None:
    """Let it finish what it has and take nothing new: drained, it may be stopped and nothing is lost. --undo takes the order back; it ends by
    itself with a process that is stopped."""
    if undo and wait:
        raise ValueError("give --undo or --wait, not both: whatever is drained works again at once")
    resolved = Home.at(config).connected()
    found = anyio.run(_order, resolved, kind.value, name, undo, yes, reason)
    if wait:
        if not as_json and sys.stderr.isatty():
            typer.echo(found.sentence, err=True)
        with busy(f"drain: {found.called}"):
            found = interrupt.run(partial(_until_drained, resolved, found))
    typer.echo(json.dumps(shown(found)) if as_json else _sentence(found, undo))


def shown(found: "Drainable") -> dict[str, Any]:
    """For machines."""
    return {"kind": found.kind, "id": found.id, "state": found.state, "left": found.left}


def _sentence(found: "Drainable", undo: bool) -> str:
    if undo:
        return f"{found.called} works again"
    if found.state != "drained":
        return found.sentence
    what = "its weights follow all the same" if found.kind == "server" else "it may be stopped"
    return f"{found.sentence}: {what}; to let it work again: penstock drain {found.kind} {found.id} --undo"


async def _order(config: Config, kind: Any, name: str, undo: bool, yes: bool, reason: str) -> "Drainable":
    from orchestrator.pool.draining import drain, undrain
    from orchestrator.pool.engine import check_revision, open_engine
    from orchestrator.pool.runs import get_run
    from orchestrator.pool.transact import once

    limit, reserved = config.watchdog.no_progress_s, config.servers.evaluation

    async def work(connection: "AsyncConnection") -> "Drainable":
        run = await get_run(connection, config.run.name)
        if undo:
            return await undrain(connection, run.run_id, kind, name, whoever(), reason, no_progress_s=limit)
        return await drain(
            connection, run.run_id, kind, name, whoever(), reason, no_progress_s=limit, reserved=reserved, last=yes
        )  # fmt: skip

    async with open_engine(config.services.database_url, size=1, name="penstock-drain") as engine:
        async with engine.connect() as connection:
            await check_revision(connection)
        return await once(engine, work, at="person.commit")


async def _until_drained(config: Config, asked: "Drainable") -> "Drainable":
    """PenstockError when nobody is there any more who could say so."""
    from orchestrator.pool.draining import find

    limit = config.watchdog.no_progress_s
    async with reading(config, "drain") as reader:
        while True:
            found = await reader.ask_until_told(
                lambda connection: find(connection, reader.run.run_id, asked.kind, asked.id, limit),
                lambda why: typer.echo(f"{why}: waiting goes on", err=True),
            )
            if found.state == "drained":
                return found
            if not found.draining:
                raise PenstockError(f"{found.called} was asked to work again, or was started anew")
            if found.silent_s > limit:
                raise PenstockError(
                    f"{found.called} has not been heard of for {found.silent_s:.0f} s: nobody says whether it is drained; "
                    "what it held is taken back when its leases run out"
                )
            await anyio.sleep(LOOK_S)


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(drain)
