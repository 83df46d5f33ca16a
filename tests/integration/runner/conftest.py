"""Fixtures of most tests of a runner."""

from tests.event_loop import anyio_backend
from tests.integration.runner.fixtures import opens, opens_at_work

__all__ = ["anyio_backend", "opens", "opens_at_work"]
