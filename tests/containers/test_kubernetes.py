"""The provider `kubernetes`, end to end: its pods are bubblewrap sandboxes of a fake cluster that speaks the real protocols."""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace

import pytest

from sandboxes.conformance import CHECKS, ConformanceCheck, run_check
from sandboxes.kubernetes.provider import KubernetesProvider
from tests.contract.of_checks import each_of
from tests.unit.sandboxes.clusters import gone
from tests.unit.sandboxes.fake_kubernetes import Fake, place, serving
from tests.violations import promise_kept
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.tier("containers")]

TTL_S = 9.0  # programs of a killed owner are dead after half of it; a busy machine opens a line in a sixth


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesProvider]:
    """The provider is known to the owners that the suite kills, too."""
    with place() as directory:
        fake = Fake(directory, processes=True)
        async with serving(fake) as known:
            settings = asdict(replace(known, ttl_s=TTL_S, start_s=60.0))
            (directory / "settings.json").write_text(json.dumps({"kubernetes": settings}))
            monkeypatch.setenv("PENSTOCK_SANDBOX_SETTINGS", str(directory / "settings.json"))
            provider = KubernetesProvider()
            yield provider

            async def tidied() -> bool:
                await provider.remove_leftovers()
                return not fake.pods

            await eventually(tidied, every_s=0.1)  # pods of killed owners
            await gone(fake)


@pytest.mark.parametrize("check", each_of(CHECKS))
async def test_pods_keep_every_promise(provider: KubernetesProvider, check: ConformanceCheck) -> None:
    result = await run_check(provider, check)
    promise_kept(result)
