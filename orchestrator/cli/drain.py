"""`penstock drain`: make a runner, a gateway or a rollout server take no new work, so that it can be stopped without losing work."""

import json
import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from orchestrator.cli import interrupt
from orchestrator.cli.bar import busy
from orchestrator.cli.dead import NO_REASON, ReasonOption
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.reading import reading
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.states import DrainKind
from orchestrator.deploy.home import Home
from orchestrator.runtime.person import current_user
from orchestrator.settings.config import Config

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.draining import Drainable

POLL_INTERVAL_S = 0.5


def drain(
    kind: Annotated[
        DrainKind, typer.Argument(help="runner (a verifier too), gateway or server (a rollout server).")
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Its name, NAME@HOST where several hosts have one, or a server's URL."
        ),
    ],
    config: ConfigOption = HERE,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take new work again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is drained; Ctrl-C ends the waiting, not the order.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Also drain the last rollout server: calls are held until a server takes them again.",
        ),
    ] = False,
    reason: ReasonOption = NO_REASON,
    as_json: JsonOption = False,
) -> None:
    """Drain a process: it finishes its work and takes no new work, so that it can be stopped without loss. --undo takes the order back; the
    order also ends with the process."""
    if undo and wait:
        raise ValueError("give --undo or --wait, not both: after --undo the process takes new work at once")
    home = Home.at(config)
    resolved = home.connected()
    found = anyio.run(_order, resolved, kind, name, undo, yes, reason)
    if wait:
        if not as_json and sys.stderr.isatty():
            typer.echo(found.sentence, err=True)
        with busy(f"drain: {found.called}"):
            found = interrupt.run(partial(_until_drained, resolved, found))
    typer.echo(json.dumps(shown(found)) if as_json else _sentence(found, undo, home.option))


def shown(found: "Drainable") -> dict[str, Any]:
    """As JSON values."""
    return {"kind": found.kind, "id": found.id, "state": found.state, "left": found.left}


def _sentence(found: "Drainable", undo: bool, at: str) -> str:
    if undo:
        return f"{found.called} works again"
    if found.draining and found.left != 0:
        return found.sentence
    consequence = "it still receives new weights" if found.kind is DrainKind.SERVER else "it may be stopped"
    return f"{found.sentence}: {consequence}; to let it work again: penstock drain {found.kind} {shlex.quote(found.id)} --undo{at}"


async def _order(
    config: Config, kind: DrainKind, name: str, undo: bool, yes: bool, reason: str
) -> "Drainable":
    from orchestrator.pool.draining import drain, undrain
    from orchestrator.pool.opened import opened
    from orchestrator.pool.runs import get_run
    from orchestrator.pool.transact import once

    limit, reserved = config.watchdog.no_progress_s, config.servers.evaluation

    async def work(connection: "AsyncConnection") -> "Drainable":
        run = await get_run(connection, config.run.name)
        if undo:
            return await undrain(
                connection, run.run_id, kind, name, current_user(), reason, no_progress_s=limit
            )
        return await drain(
            connection, run.run_id, kind, name, current_user(), reason, no_progress_s=limit, reserved=reserved, last=yes
        )  # fmt: skip

    async with opened(config.services.database_url, name="penstock-drain") as engine:
        return await once(engine, work, at="person.commit")


async def _until_drained(config: Config, target: "Drainable") -> "Drainable":
    """Wait until it is drained. Raises PenstockError if it cannot report that any more."""
    from orchestrator.pool.draining import find

    limit = config.watchdog.no_progress_s
    async with reading(config, "drain") as reader:
        while True:
            found = await reader.ask_until_answered(
                lambda connection: find(connection, reader.run.run_id, target.kind, target.id, limit),
                lambda why: typer.echo(f"{why}: waiting goes on", err=True),
            )
            if found.draining and found.left == 0:
                return found
            if not found.draining:
                raise PenstockError(
                    f"{found.called} no longer drains: it was ordered to take new work, or it was restarted"
                )
            if found.silent_s > limit:
                raise PenstockError(
                    f"{found.called} has not reported for {found.silent_s:.0f} s, so whether it is drained is unknown; "
                    "its work is taken back when its leases run out"
                )
            await anyio.sleep(POLL_INTERVAL_S)


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(drain)
