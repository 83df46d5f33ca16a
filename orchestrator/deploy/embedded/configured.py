"""Services that a configuration or the environment names, checked by the code that uses them."""

from orchestrator.bus.base import BusError
from orchestrator.bus.link import places_of
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.postgres_binaries import OLDEST_MAJOR
from orchestrator.pool.address import place_of
from orchestrator.pool.engine import Role, check_revision, open_engine, revision_of
from orchestrator.queries.postgres_server import postgres_server
from orchestrator.settings.timeouts import timeouts


async def ask_postgres(url: str) -> str:
    """A description of the data pool, once every role has been taken. ServiceError, one sentence, if a run cannot use it."""
    async with open_engine(url, size=1, name="penstock-doctor") as engine, engine.connect() as connection:
        server = await postgres_server(connection)
        version = server.version.partition(" ")[0]
        if server.version_number // 10_000 < OLDEST_MAJOR:
            raise ServiceError(
                f"PostgreSQL at {place_of(url)} is {version}, and {OLDEST_MAJOR} or newer is needed; upgrade it, or name another in DATABASE_URL"
            )
        if server.read_only:
            raise ServiceError(
                f"PostgreSQL at {place_of(url)} refuses writes: it is a standby, or its login or URL sets default_transaction_read_only; "
                "name the primary in DATABASE_URL"
            )
        await check_revision(connection)
        revision = await revision_of(connection)
    for role in Role:
        async with open_engine(url, role, size=1, name="penstock-doctor"):
            pass
    return f"{version} at {place_of(url)}, at revision {revision}, as {server.login}, which takes every role"


async def ask_nats(url: str) -> str:
    """A description of the bus. BusError, one sentence, if it does not answer or is unfit."""
    async with NatsBus.connect(url, name="penstock-doctor", patience_s=timeouts().bus_connect_s):
        return f"answers at {places_of(url)}, with JetStream"


KNOWN = (ServiceError, BusError)
