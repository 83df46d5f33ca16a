"""`penstock doctor --cluster`: a run on several machines, looked at from one of them; each problem with what mends it. Changes nothing but a probe
file in the shared directory.

| file | asks |
|---|---|
| postgres.py | is what is committed durable, are there connections enough, is the schema this code's |
| bus.py | NATS: its version, JetStream, each stream's replicas and leader, when it syncs |
| clocks.py | this host's clock against those of PostgreSQL and NATS |
| shared.py | is the directory of the policies durable, and the same one as others see |
| processes.py | are the processes of one version, are they heard of, do gateways and servers answer |
| isolation.py | what a program in a real sandbox reaches, and must not |
"""

from collections.abc import Callable
from time import time

from orchestrator.cluster.doctor import bus, clocks, isolation, postgres, processes, shared
from orchestrator.cluster.doctor.expected import Expected
from orchestrator.config import Config
from orchestrator.contracts.errors import PenstockError
from orchestrator.embedded.doctor import Check
from orchestrator.pool.engine import Role, open_engine
from sandboxes.base import Provider

__all__ = ["Expected", "examined"]


async def examined(
    config: Config, expected: Expected, provider: Provider | None, *, now: Callable[[], float] = time
) -> list[Check]:
    """Every check, in the order in which people should read them. `provider`: of the sandbox to look from; None: none is opened. `now`: this
    host's clock, in seconds since 1970."""
    found: list[Check] = []
    targets = isolation.configured(config)
    try:
        async with (
            open_engine(config.services.database_url, Role.READER, size=1, name="penstock-doctor") as engine,
            engine.connect() as connection,
        ):
            found += await postgres.checks(connection, expected)
            found.append(await clocks.of_postgres(connection, now))
            run = await processes.run_of(connection, config.run.name)
            found += await shared.checks(connection, run, expected.directory)
            found += await processes.checks(connection, run, config)
            targets += await isolation.known(connection, run)
    except PenstockError as error:
        found.append(Check("PostgreSQL", False, str(error), "start it, or mend DATABASE_URL"))
    found += await bus.checks(config.services.nats_url, expected, now)
    found += await processes.gateways(config)
    if provider is not None:
        found += await isolation.checks(provider, targets)
    return found
