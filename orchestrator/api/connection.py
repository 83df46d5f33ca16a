"""Connecting to a run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.api.arguments import each_of, place, words
from orchestrator.api.run import Run
from orchestrator.deploy.home import Home
from orchestrator.pool.engine import Role
from orchestrator.pool.opened import opened_run
from orchestrator.settings.config import effective


@asynccontextmanager
async def connect(config: str | Path = ".", *, overrides: Sequence[str] = ()) -> AsyncIterator[Run]:
    """Open the run of a configuration, for as long as the context is open.

    `config`: penstock.toml, or its directory. Its services are those of the file, of $DATABASE_URL and $NATS_URL, or those that `penstock up`
    started there. `overrides`: keys in the form "section.key=value". The connection only reads from PostgreSQL.

    Raises ConfigurationError if the file or the run does not exist, ServiceError if PostgreSQL cannot be reached.
    """
    home = Home.at(place("config", config).absolute(), each_of("overrides", overrides, words))
    own = home.reading()
    async with opened_run(own, Role.READER, size=2, name="penstock-api") as (engine, stored):
        run = Run(home, config=effective(stored.config, own), own=own, engine=engine, stored=stored)
        try:
            yield run
        finally:
            run._closed = True
