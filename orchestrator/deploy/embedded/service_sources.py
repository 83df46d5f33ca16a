"""Which services a run uses, and why; and whether a service that the environment names is the embedded one of another directory.

`eval "$(penstock env -c first)"` leaves its exports in the shell. A run of another directory that used them would keep its data with
the first run, and lose its services when that run stops.
"""

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

import asyncpg

from orchestrator.bus.link import places_of, urls_of
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats import announced
from orchestrator.deploy.embedded.nats_server import MARK, find_nats
from orchestrator.deploy.embedded.own_urls import embedded_nats, embedded_postgres
from orchestrator.pool.address import address_of, place_of
from orchestrator.runtime.environment import named
from orchestrator.settings.timeouts import timeouts

_EMBEDDED = re.compile(r"nats://[A-Za-z0-9_-]{32}@127\.0\.0\.1:[0-9]+")
"""The URL of an embedded server, as `penstock env` prints it."""


class Source(StrEnum):
    """The source that names a service."""

    FILE = "the configuration"
    ENVIRONMENT = "the environment"
    EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """One service of a run. `variable`: DATABASE_URL or NATS_URL."""

    service: str
    variable: str
    url: str
    source: Source
    directory: Path

    def __str__(self) -> str:
        if self.source is Source.EMBEDDED:
            return f"{self.service}: embedded, in {self.directory}"
        address = place_of(self.url) if self.service == "PostgreSQL" else places_of(self.url)
        key = "services." + self.variable.lower()
        origin = (
            f"named by {self.variable} in the environment"
            if self.source is Source.ENVIRONMENT
            else f"named by {key}"
        )
        return f"{self.service}: {address}, {origin}"


def used(layout: RunLayout, database_url: str, nats_url: str) -> tuple[Used, Used]:
    """The services of the run in `layout`; the URLs are those of its configuration, including the environment's."""
    postgres = _source("DATABASE_URL", database_url, embedded_postgres(layout, database_url))
    bus = _source("NATS_URL", nats_url, embedded_nats(layout, nats_url))
    return (
        Used(
            service="PostgreSQL",
            variable="DATABASE_URL",
            url=database_url,
            source=postgres,
            directory=layout.postgres,
        ),
        Used(service="NATS", variable="NATS_URL", url=nats_url, source=bus, directory=layout.nats),
    )


def passed_over() -> list[str]:
    """One sentence if an embedded NATS is not the pinned one because earlier candidates could not be used."""
    try:
        found = find_nats()
    except ValueError:
        return []  # reported at its start
    if not found.passed_over:
        return []
    return [f"NATS: {found.path} is used; passed over: {', '.join(found.passed_over)}"]


def _source(variable: str, url: str, own: str | None) -> Source:
    """The source of a URL. The run's own embedded service is embedded, wherever its URL comes from."""
    if not url or own is not None:
        return Source.EMBEDDED
    return Source.ENVIRONMENT if named(variable) == url else Source.FILE


async def check_embedded_owner(services: tuple[Used, Used]) -> None:
    """Raise ServiceError if the environment names the embedded service of another directory, or one that does not answer."""
    for service in services:
        if service.source is not Source.ENVIRONMENT:
            continue
        owner = await (_of_postgres if service.service == "PostgreSQL" else _of_nats)(service.url)
        if owner is not None and owner != service.directory:
            home = owner.parents[1].parent
            raise ServiceError(
                f"{service.variable} in the environment names the embedded {service.service} of {home}, which starts and stops with that run "
                f"alone: `unset DATABASE_URL NATS_URL`, and this run starts its own; to share one, name it in services.{service.variable.lower()}"
            )


async def _of_postgres(url: str) -> Path | None:
    """The data directory of an embedded server. None: it is not one, or cannot be queried, which other checks report."""
    try:
        connection = await asyncpg.connect(**address_of(url).arguments(timeout_s=timeouts().pool_connect_s))
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        return None
    try:
        name, data_directory = await connection.fetchrow(
            "SELECT current_setting('cluster_name'), current_setting('data_directory', true)"
        )
    except asyncpg.PostgresError:
        # An ordinary login may not query the directory. An embedded server has no ordinary login.
        return None
    finally:
        await connection.close()
    if not name.startswith("penstock-") or not data_directory:
        return None
    found = Path(data_directory)
    origin = found.parent / "origin"  # data that root keeps where the server's user can reach it
    try:
        return _of_a_run(Path(os.fsdecode(origin.read_bytes()).strip()) if origin.exists() else found)
    except OSError:
        return _of_a_run(found)


def _of_a_run(pgdata: Path) -> Path | None:
    return pgdata.parent if pgdata.parts[-4:-1] == (".penstock", "data", "postgres") else None


async def _of_nats(url: str) -> Path | None:
    """The data directory of an embedded server. None: it is not one. Raises ServiceError if the URL has the form of one and another program may
    get its login."""
    found = await announced(urls_of(url)[0])
    if _EMBEDDED.fullmatch(url) and found.user not in (0, os.getuid()):
        answers = (
            f"a program of user {found.user}" if found.user is not None else "a program of an unknown user"
        )
        problem = f"{answers} answers" if found.name or found.user is not None else "nothing answers"
        raise ServiceError(
            f"NATS_URL in the environment has the login of an embedded NATS, and {problem} at {places_of(url)}, so the login is not sent: "
            "`unset DATABASE_URL NATS_URL`, and this run starts its own; to use that server, name it in services.nats_url"
        )
    name = found.name
    directory = Path(unquote(name.removeprefix(MARK)))
    return (
        directory if name.startswith(MARK) and directory.parts[-3:] == (".penstock", "data", "nats") else None
    )
