"""Settings for every test: one torch thread, asyncio under anyio, real services on demand."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

pytest_plugins = ["tests.services"]


@pytest.fixture
def anyio_backend() -> str:
    """nats-py, aiohttp and asyncpg are asyncio-only, so anyio runs on asyncio."""
    return "asyncio"
