"""The processes of a run: they report, and are reachable: rollout servers for gateways; gateways and the port for sandboxes for this host."""

from urllib.parse import urlsplit

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import ServerState
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.pool.heartbeats import own_code, present
from orchestrator.queries.batches import failed_batches
from orchestrator.queries.installation import reported_servers
from orchestrator.settings.config import Config

PATIENCE_S = 3.0


async def checks(connection: AsyncConnection, run: int | None, config: Config) -> list[DoctorCheck]:
    """A process that writes its row reaches PostgreSQL. A stuck loop names its unreachable dependency. A server's owner reaches it."""
    if run is None:
        return [
            DoctorCheck(
                name="run",
                ok=False,
                detail=f"the data pool has no run {config.run.name!r}",
                fix="start its orchestrator",
            )
        ]
    found = []
    for process in await present(connection, run):
        if process.stopped:
            continue
        name = f"{process.process} on {process.host}"
        unreachable = sorted({loop.waits_for for loop in process.loops if loop.stuck_s and loop.waits_for})
        if process.silent_s > config.watchdog.no_progress_s:
            detail = f"last seen {process.silent_s:.0f} s ago"
            found.append(
                DoctorCheck(
                    name=name,
                    ok=False,
                    detail=detail,
                    fix="start it again, or let that host reach PostgreSQL",
                )
            )
        elif unreachable:
            fix = f"let {process.host} reach {', '.join(unreachable)}"
            found.append(
                DoctorCheck(name=name, ok=False, detail=f"waits for {', '.join(unreachable)}", fix=fix)
            )
        else:
            found.append(DoctorCheck(name=name, ok=True, detail=f"last seen {process.silent_s:.0f} s ago"))
        if process.silent_s <= config.watchdog.no_progress_s and process.code != own_code():
            detail = f"it runs {process.code or 'code that does not say which'}, this host {own_code()}"
            fix = f"install the same version on {process.host} and here, and start it again"
            found.append(DoctorCheck(name=f"code of {name}", ok=False, detail=detail, fix=fix))
    for server in await reported_servers(connection, run):
        healthy = server.state in (ServerState.READY, ServerState.SYNCING)
        hangs = "" if healthy or "hangs" not in (server.detail or "") else "end it and "
        fix = "" if healthy else f"{hangs}start it, and let every gateway's host reach it"
        detail = f"{server.state}, {server.owner or 'no gateway has it'}" + (
            f": {server.detail}" if server.detail else ""
        )
        found.append(DoctorCheck(name=f"rollout server {server.url}", ok=healthy, detail=detail, fix=fix))
    for sentence in await failed_batches(connection, run, unresolved=True):
        fix = "ops/runbooks/training-halted.md"
        found.append(DoctorCheck(name="batches", ok=False, detail=sentence, fix=fix))
    return found


async def gateways(config: Config) -> list[DoctorCheck]:
    """From this host, as a runner would: the admin port of each, and the port for sandboxes."""
    found = []
    for url in config.gateway.urls:
        host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
        for purpose, checked_port in (("", port), ("for sandboxes, ", config.gateway.sandbox_port)):
            if checked_port:
                reachable = await reached(host, checked_port)
                fix = "" if reachable else f"start it, or let runners' hosts reach {host}:{checked_port}"
                detail = "answers" if reachable else "does not answer"
                found.append(
                    DoctorCheck(
                        name=f"gateway, {purpose}{host}:{checked_port}", ok=reachable, detail=detail, fix=fix
                    )
                )
    return found


async def reached(host: str, port: int) -> bool:
    """Whether the address accepts a connection."""
    try:
        with anyio.fail_after(PATIENCE_S):
            stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True
