"""`penstock doctor --cluster`: checks a run on several machines from one of them. Each problem has its remedy. Changes nothing but a probe
file in the shared directory.

| file | checks |
|---|---|
| postgres.py | are commits durable, are there enough connections, is the schema this code's |
| bus.py | NATS: its version, JetStream, each stream's replicas and leader, when it syncs |
| clocks.py | this host's clock against those of PostgreSQL and NATS |
| shared.py | is the directory of the policies durable, and the same on other hosts |
| processes.py | do the processes have one version, do they report, do gateways and servers answer |
| isolation.py | which services a program in a real sandbox reaches, but must not |
"""

from collections.abc import Callable
from time import time

from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.cluster.doctor import (
    bus,
    clocks,
    isolation,
    postgres,
    processes,
    shared,
)
from orchestrator.deploy.cluster.doctor.expected import Expected
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.pool.engine import Role, open_engine
from orchestrator.queries.installation import run_id_of
from orchestrator.runtime.unreachable import fix_of
from orchestrator.settings.config import Config
from sandboxes.base import Provider

__all__ = ["Expected", "examined"]


async def examined(
    config: Config, expected: Expected, provider: Provider | None, *, now: Callable[[], float] = time
) -> list[DoctorCheck]:
    """Every check, in reading order. `provider`: of the sandbox to check from; None: none is opened. `now`: this
    host's clock, in seconds since 1970."""
    found: list[DoctorCheck] = []
    targets = isolation.configured(config)
    try:
        async with (
            open_engine(config.services.database_url, Role.READER, size=1, name="penstock-doctor") as engine,
            engine.connect() as connection,
        ):
            found += await postgres.checks(connection, expected)
            found.append(await clocks.of_postgres(connection, now))
            run = await run_id_of(connection, config.run.name)
            found += await shared.checks(connection, run, expected.directory)
            found += await processes.checks(connection, run, config)
            targets += await isolation.known(connection, run)
    except PenstockError as error:
        found.append(
            DoctorCheck(
                name="PostgreSQL",
                ok=False,
                detail=str(error),
                fix=fix_of(config.services.database_url, "DATABASE_URL"),
            )
        )
    found += await bus.checks(config.services.nats_url, expected, now)
    found += await processes.gateways(config)
    if provider is not None:
        found += await isolation.checks(provider, targets)
    return found
