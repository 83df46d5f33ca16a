"""A thousand attempts over a cluster whose API server throttles, breaks, is slow, and loses answers and watches (tier processes)."""

import pytest

from tests.unit.sandboxes.clusters import HURT, attempts
from tests.unit.sandboxes.fake_kubernetes import Faults

pytestmark = [pytest.mark.anyio, pytest.mark.tier("processes")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_thousand_attempts_have_a_pod_each_and_leave_none_whatever_is_lost() -> None:
    await attempts(1000, Faults(**HURT, seed=7), least=10)
