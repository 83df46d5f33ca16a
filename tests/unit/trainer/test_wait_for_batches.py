"""The seconds that a trainer waits for a batch, in virtual time."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runtime.metrics import measuring
from tests import virtual_time
from tests.virtual_time import passes
from trainer.loop import POLL_S, train_batches
from trainer.phases import NoBatch

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, Mapping[str, Any]]:
    return virtual_time.BACKEND


async def test_the_wait_for_a_batch_includes_the_claims_that_found_none() -> None:
    claims = iter([(7.0, NoBatch.NOT_YET), (2.0, NoBatch.NOT_YET), (1.0, NoBatch.RUN_ENDED)])

    async def claim() -> NoBatch:
        seconds, found = next(claims)
        await passes(seconds)
        return found

    async def prune() -> None:
        pass

    trainer: Any = SimpleNamespace(claim=claim, prune=prune, learner=SimpleNamespace(version=0))
    with measuring() as process:
        await train_batches(trainer, retry=True)
    waited = process.registry.get_sample_value("penstock_train_phase_seconds_total", {"phase": "wait"})
    assert waited == pytest.approx(9 + 2 * POLL_S)
