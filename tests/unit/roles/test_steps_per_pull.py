"""The number of steps that ingest fetches at once stays below the number that NATS keeps waiting for one connection."""

import pytest

from orchestrator.roles.ingest import steps_per_pull
from orchestrator.settings.config import Config

MAX_PENDING_MB = 64  # a NATS server's default


@pytest.mark.parametrize(
    ("routes_mb", "steps"), [(6.0, 8), (7.5, 6), (0.1, 64), (0.75, 64), (40.0, 1), (100.0, 1)]
)
def test_steps_with_routes_are_fetched_so_many_at_once_that_nats_never_cuts_the_connection(
    routes_mb: float, steps: int
) -> None:
    config = Config.model_validate({"gateway": {"routes_mb": routes_mb}, "trainer": {"routing_replay": True}})
    assert steps_per_pull(config) == steps
    assert steps == 1 or steps * routes_mb < MAX_PENDING_MB


def test_without_routes_64_steps_are_fetched_at_once() -> None:
    assert steps_per_pull(Config()) == 64
