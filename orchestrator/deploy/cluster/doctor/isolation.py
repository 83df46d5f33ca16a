"""Which services a program inside a real sandbox reaches. It must reach neither PostgreSQL, NATS, a gateway's admin API nor a rollout server. Such
a program could write its own rewards, read others' tasks, or sample without a record."""

import json
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.link import urls_of
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.queries.installation import reported_servers
from orchestrator.settings.config import Config
from sandboxes.base import Provider, SandboxError, SandboxSpec

Target = tuple[str, str, int]
"""Name, host, port."""

PATIENCE_S = 30.0
_PROBE = """
import errno, json, os, selectors, socket, sys, time
left, found = json.loads(sys.argv[1]), []
while left:
    batch, left, watched = left[:100], left[100:], selectors.DefaultSelector()
    for address, port in batch:
        try:
            opened = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            opened.setblocking(False)
            code = opened.connect_ex((address, port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            watched.register(opened, selectors.EVENT_WRITE, (address, port))
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
"""The result of each connection, tried at once: why it failed, empty if it succeeded. Only IP addresses: a sandbox may resolve no names, and a name
that it cannot resolve proves nothing about the route."""


def configured(config: Config) -> list[Target]:
    """The targets that the configuration names."""
    return [
        *_of("PostgreSQL", [config.services.database_url.split(",")[0]], 5432),
        *_of("NATS", urls_of(config.services.nats_url), 4222),
        *_of("the admin API of a gateway", config.gateway.urls, 80),
        *_of("a rollout server", config.servers.urls, 80),
    ]


async def known(connection: AsyncConnection, run: int | None) -> list[Target]:
    """Rollout servers in the data pool."""
    if run is None:
        return []
    return _of("a rollout server", [server.url for server in await reported_servers(connection, run)], 80)


def _of(what: str, urls: Iterable[str], port: int) -> list[Target]:
    parts = [urlsplit(url if "//" in url else f"//{url}") for url in urls]
    return [(what, part.hostname, part.port or port) for part in parts if part.hostname]


async def _addresses(target: Target) -> list[str] | str:
    """The addresses of a target's host, as this host resolves it, or why it has none."""
    _, host, port = target
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return str(error)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def checks(provider: Provider, targets: list[Target]) -> list[DoctorCheck]:
    """One check per target. A sandbox that cannot be opened is a separate problem, and so is a name that this host cannot resolve."""
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
            result = await sandbox.exec(
                ["python3", "-c", _PROBE, json.dumps(sorted(tried))], timeout_s=PATIENCE_S
            )
        outcomes = {(address, port): reason for address, port, reason in json.loads(result.stdout)}
    except (SandboxError, ValueError, OSError) as error:
        return [
            DoctorCheck(
                name=title,
                ok=False,
                detail=f"it cannot be looked from there: {error}",
                fix="`penstock doctor --sandbox`",
            )
        ]
    return [_judged(title, target, places[target], outcomes) for target in unique]


def _judged(
    title: str, target: Target, at: list[str] | str, became: Mapping[tuple[str, int], str]
) -> DoctorCheck:
    label, host, port = target
    name = f"{title}: {label} {host}:{port}"
    if isinstance(at, str):
        fix = f"run this on a host that can resolve {host}, or give its address"
        return DoctorCheck(
            name=name,
            ok=False,
            detail=f"nothing was tried: this host cannot resolve {host} ({at})",
            fix=fix,
        )
    if reached := [address for address in at if not became[address, port]]:
        addresses = "" if reached == [host] else f", at {', '.join(reached)}"
        fix = f"sandboxes must not reach it: use an isolating provider, or forbid it by a network policy ({host}:{port})"
        return DoctorCheck(name=name, ok=False, detail=f"is reached{addresses}", fix=fix)
    return DoctorCheck(
        name=name,
        ok=True,
        detail=f"is not reached ({'; '.join(dict.fromkeys(became[each, port] for each in at))})",
    )
