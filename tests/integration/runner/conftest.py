"""Fixtures of most tests of a runner."""

from tests.integration.runner.fixtures import opens, opens_at_work

__all__ = ["opens", "opens_at_work"]
