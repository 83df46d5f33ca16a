"""The waits of the provider `kubernetes`: for an image, for a line that does not come up, and for pods of other runs."""


import anyio
import pytest

from sandboxes.base import SandboxSpec
from tests.unit.sandboxes.clusters import cluster, gone
from tests.unit.sandboxes.fake_runtime import Object
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.tier("sandboxes")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerError"])
async def test_a_pod_whose_start_the_kubelet_tries_again_is_waited_for(reason: str) -> None:
    async def pull(pod: Object) -> None:
        pod["status"] = {
            "phase": "Pending",
            "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "503"}}}],
        }
        fake.record("pods", "MODIFIED", pod)
        # The provider has read this state: it watches for the next one.
        await eventually(lambda: ("watch", "pods") in fake.used)

    async with cluster() as (fake, provider):
        fake.pending = pull
        with anyio.fail_after(60):
            async with provider.open(SandboxSpec()):
                assert len(fake.made) == 1
        await gone(fake)
