"""The event loop of the product's processes, for the tests of what works in them: uvloop's sockets and programs can do less than asyncio's."""

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """A directory's conftest.py takes it; the other tests use asyncio's own loop."""
    return "asyncio", {"use_uvloop": True}
