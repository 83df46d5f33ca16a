"""What a program inside a real sandbox reaches. It must reach neither PostgreSQL, NATS, a gateway's admin API nor a rollout server: whoever does
could write its own rewards, read others' tasks, or sample without a record."""

import json
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.link import urls_of
from orchestrator.config import Config
from orchestrator.embedded.doctor import Check
from sandboxes.base import Provider, SandboxError, SandboxSpec

Target = tuple[str, str, int]
"""What it is, host, port."""

PATIENCE_S = 30.0
_PROBE = """
import errno, json, os, selectors, socket, sys, time
left, found = json.loads(sys.argv[1]), []
while left:
    batch, left, watched = left[:100], left[100:], selectors.DefaultSelector()
    for address, port in batch:
        try:
            begun = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            begun.setblocking(False)
            code = begun.connect_ex((address, port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            watched.register(begun, selectors.EVENT_WRITE, (address, port))
        except OSError as error:
            found.append([address, port, error.strerror or str(error)])
    until = time.monotonic() + 2
    while watched.get_map() and (rest := until - time.monotonic()) > 0:
        for key, _ in watched.select(rest):
            watched.unregister(key.fileobj)
            code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            found.append([*key.data, os.strerror(code) if code else ""])
            key.fileobj.close()
    for key in list(watched.get_map().values()):
        found.append([*key.data, "no answer"])
        key.fileobj.close()
print(json.dumps(found))
"""
"""What became of each connection, tried at once: why it was not made, empty where it was. Addresses alone: a sandbox may know no names, and a name
that it cannot resolve says nothing of the way there."""


def configured(config: Config) -> list[Target]:
    """What the configuration names."""
    return [
        *_of("PostgreSQL", [config.services.database_url.split(",")[0]], 5432),
        *_of("NATS", urls_of(config.services.nats_url), 4222),
        *_of("the admin API of a gateway", config.gateway.urls, 80),
        *_of("a rollout server", config.servers.urls, 80),
    ]


async def known(connection: AsyncConnection, run: int | None) -> list[Target]:
    """Rollout servers that the data pool knows of."""
    if run is None:
        return []
    urls = await connection.scalars(text("SELECT url FROM rollout_servers WHERE run_id = :run"), {"run": run})
    return _of("a rollout server", urls.all(), 80)


def _of(what: str, urls: Iterable[str], port: int) -> list[Target]:
    parts = [urlsplit(url if "//" in url else f"//{url}") for url in urls]
    return [(what, part.hostname, part.port or port) for part in parts if part.hostname]


async def _addresses(target: Target) -> list[str] | str:
    """Those of a target's host, as this host resolves it, or why there are none."""
    _, host, port = target
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return str(error)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def checks(provider: Provider, targets: list[Target]) -> list[Check]:
    """One for each target. A sandbox that cannot be opened is a problem of its own, and so is a name that nobody here resolves."""
    title = f"from a sandbox ({provider.name})"
    unique = list(dict.fromkeys(targets))
    places: dict[Target, list[str] | str] = {}

    async def resolve(target: Target) -> None:
        places[target] = await _addresses(target)

    async with anyio.create_task_group() as group:
        for target in unique:
            group.start_soon(resolve, target)
    tried = {(address, port) for (_, _, port), at in places.items() if isinstance(at, list) for address in at}
    try:
        async with provider.open(SandboxSpec()) as sandbox:
            done = await sandbox.exec(
                ["python3", "-c", _PROBE, json.dumps(sorted(tried))], timeout_s=PATIENCE_S
            )
        became = {(address, port): why for address, port, why in json.loads(done.stdout)}
    except (SandboxError, ValueError, OSError) as error:
        return [Check(title, False, f"it cannot be looked from there: {error}", "penstock doctor --sandbox")]
    return [_judged(title, target, places[target], became) for target in unique]


def _judged(title: str, target: Target, at: list[str] | str, became: Mapping[tuple[str, int], str]) -> Check:
    what, host, port = target
    name = f"{title}: {what} {host}:{port}"
    if isinstance(at, str):
        fix = f"look from a host that knows {host}, or name its address"
        return Check(name, False, f"nothing was tried: {host} is no name that this host knows ({at})", fix)
    if reached := [address for address in at if not became[address, port]]:
        known = "" if reached == [host] else f", at {', '.join(reached)}"
        fix = f"sandboxes must not reach it: use an isolating provider, or forbid it by a network policy ({host}:{port})"
        return Check(name, False, f"is reached{known}", fix)
    return Check(
        name, True, f"is not reached ({'; '.join(dict.fromkeys(became[each, port] for each in at))})"
    )
