"""What a program inside a real sandbox reaches. It must reach neither PostgreSQL, NATS, a gateway's admin API nor a rollout server: whoever does
could write its own rewards, read others' tasks, or sample without a record."""

import json
from collections.abc import Iterable
from urllib.parse import urlsplit

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
import json, socket, sys
found = []
for what, host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=1).close()
        found.append([what, host, port])
    except OSError:
        pass
print(json.dumps(found))
"""


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


async def checks(provider: Provider, targets: list[Target]) -> list[Check]:
    """One for each target. A sandbox that cannot be opened is a problem of its own."""
    title = f"from a sandbox ({provider.name})"
    unique = list(dict.fromkeys(targets))
    try:
        async with provider.open(SandboxSpec()) as sandbox:
            done = await sandbox.exec(["python3", "-c", _PROBE, json.dumps(unique)], timeout_s=PATIENCE_S)
        reached = {tuple(found) for found in json.loads(done.stdout)}
    except (SandboxError, ValueError, OSError) as error:
        return [Check(title, False, f"it cannot be looked from there: {error}", "penstock doctor --sandbox")]
    return [
        Check(
            f"{title}: {what} {host}:{port}",
            (what, host, port) not in reached,
            "is reached" if (what, host, port) in reached else "is not reached",
            f"sandboxes must not reach it: use an isolating provider, or forbid it by a network policy ({host}:{port})"
            if (what, host, port) in reached
            else "",
        )
        for what, host, port in unique
    ]
