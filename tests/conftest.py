"""Settings for every test: one torch thread, asyncio under anyio, real services on demand."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.contract.rollout_server import KINDS

pytest_plugins = ["tests.services"]

# The same examples in each run and on each machine, whatever its speed: a pause of the machine is not a fault of the code.
hypothesis.settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("penstock")

# Rich tracebacks show all locals: a chain of SQLAlchemy's errors takes seconds of CPU, during which the test's event loop stands still.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


@pytest.fixture
def anyio_backend() -> str:
    """nats-py, aiohttp and asyncpg are asyncio-only, so anyio runs on asyncio."""
    return "asyncio"


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """The owner's connections to a data pool of the test's own."""
    from orchestrator.pool.engine import open_engine

    async with open_engine(database_url, name="test") as engine:
        yield engine


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restores logging: a command that a test runs in its own process configures it for all later tests."""
    configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rollout-server",
        choices=KINDS,
        default="embedded",
        help="which rollout server the tests start; sglang also selects the tests that need a real one (./ops/test --tier sglang)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test marked with the name of one kind of rollout server holds for that kind alone."""
    others = [kind for kind in KINDS if kind != config.getoption("--rollout-server")]
    left_out = [item for item in items if any(item.get_closest_marker(kind) for kind in others)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def server_kind(pytestconfig: pytest.Config) -> str:
    """Which rollout server the tests start: embedded or sglang."""
    return str(pytestconfig.getoption("--rollout-server"))
