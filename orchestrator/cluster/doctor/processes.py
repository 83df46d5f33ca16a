"""The processes of a run: heard of, and within reach: gateways of rollout servers, this host of gateways and of the port for sandboxes."""

from urllib.parse import urlsplit

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.config import Config
from orchestrator.embedded.doctor import Check
from orchestrator.pool.presence import own_code, present

PATIENCE_S = 3.0
_RUN = text("SELECT run_id FROM runs WHERE name = :name")
_SERVERS = text("SELECT url, state, owner, detail FROM rollout_servers WHERE run_id = :run ORDER BY url")


async def run_of(connection: AsyncConnection, name: str) -> int | None:
    """The run, where the database has one of this name."""
    exists = await connection.scalar(text("SELECT to_regclass('runs')"))
    found: int | None = await connection.scalar(_RUN, {"name": name}) if exists else None
    return found


async def checks(connection: AsyncConnection, run: int | None, config: Config) -> list[Check]:
    """Who writes its row reaches PostgreSQL; a loop that is stuck says what it does not reach; a server with an owner is reached by it."""
    if run is None:
        return [
            Check("run", False, f"the data pool has no run {config.run.name!r}", "start its orchestrator")
        ]
    found = []
    for process in await present(connection, run):
        if process.stopped:
            continue
        name = f"{process.process} on {process.host}"
        away = sorted({loop.waits_for for loop in process.loops if loop.stuck_s and loop.waits_for})
        if process.silent_s > config.watchdog.no_progress_s:
            said = f"not heard of for {process.silent_s:.0f} s"
            found.append(Check(name, False, said, "start it again, or let that host reach PostgreSQL"))
        elif away:
            fix = f"let {process.host} reach {', '.join(away)}"
            found.append(Check(name, False, f"waits for {', '.join(away)}", fix))
        else:
            found.append(Check(name, True, f"heard of {process.silent_s:.0f} s ago"))
        if process.silent_s <= config.watchdog.no_progress_s and process.code != own_code():
            said = f"it runs {process.code or 'code that does not say which'}, this host {own_code()}"
            fix = f"install the same version on {process.host} and here, and start it again"
            found.append(Check(f"code of {name}", False, said, fix))
    for server in await connection.execute(_SERVERS, {"run": run}):
        fine = server.state in ("ready", "syncing")
        fix = "" if fine else "start it, and let every gateway's host reach it"
        said = f"{server.state}, {server.owner or 'no gateway has it'}" + (
            f": {server.detail}" if server.detail else ""
        )
        found.append(Check(f"rollout server {server.url}", fine, said, fix))
    return found


async def gateways(config: Config) -> list[Check]:
    """From this host, as a runner would: the admin port of each, and the port for sandboxes."""
    found = []
    for url in config.gateway.urls:
        host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
        for what, at in (("", port), ("for sandboxes, ", config.gateway.sandbox_port)):
            if at:
                fine = await reached(host, at)
                fix = "" if fine else f"start it, or let runners' hosts reach {host}:{at}"
                said = "answers" if fine else "does not answer"
                found.append(Check(f"gateway, {what}{host}:{at}", fine, said, fix))
    return found


async def reached(host: str, port: int) -> bool:
    """Whether a connection is accepted there."""
    try:
        with anyio.fail_after(PATIENCE_S):
            stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True
