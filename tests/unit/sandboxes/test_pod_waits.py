"""The waits of the provider `kubernetes`: for an image, for a line that does not come up, and for pods of other runs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from sandboxes.base import SandboxLost, SandboxSpec
from sandboxes.kubernetes.objects import Identity, pod
from sandboxes.kubernetes.provider import KubernetesProvider, _abandoned
from sandboxes.kubernetes.settings import KubernetesSettings
from tests.unit.sandboxes.clusters import cluster, gone
from tests.unit.sandboxes.fake_kubernetes import Silence
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


async def test_a_pod_of_another_run_that_still_starts_is_not_removed_by_our_shorter_limits() -> None:
    async with cluster(ttl_s=1.0, start_s=1.0) as (fake, ours), anyio.create_task_group() as tasks:
        pulled = anyio.Event()

        async def pull(_: Object) -> None:
            await pulled.wait()

        fake.pending = pull
        theirs = KubernetesProvider(replace(ours.settings, ttl_s=60.0, start_s=600.0))
        closed = anyio.Event()

        async def open_theirs() -> None:
            async with theirs.open(SandboxSpec()):
                closed.set()

        def age(**since: float) -> None:
            created = datetime.now(UTC) - timedelta(**since)
            for pod in fake.pods.values():
                pod["metadata"]["creationTimestamp"] = created.strftime("%Y-%m-%dT%H:%M:%SZ")

        tasks.start_soon(open_theirs)
        await eventually(lambda: ("watch", "pods") in fake.used)
        age(seconds=300)
        assert await ours.remove_leftovers() == 0
        pulled.set()
        await closed.wait()
        await gone(fake)
        assert set(fake.made.values()) == {1}


def test_a_pod_is_abandoned_by_the_limits_of_its_own_run() -> None:
    ours = KubernetesSettings(ttl_s=1.0, start_s=1.0)
    theirs = KubernetesSettings(ttl_s=60.0, start_s=600.0)
    identity = Identity(name="penstock-1", opening="o", work=None, owner="host/runner", uid=1000)
    made = pod(identity, SandboxSpec(), theirs)
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    created_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    terminated: dict[str, Any] = {"state": {"terminated": {"finishedAt": "2026-01-01T00:00:00Z"}}}
    for status, limit_s, ours_s in (
        ({"phase": "Pending"}, 660, 2.0),
        ({"phase": "Failed", "containerStatuses": [terminated]}, 30, 0.5),
    ):
        made["status"] = status
        assert not _abandoned(made, created_s + limit_s, ours)
        assert _abandoned(made, created_s + limit_s + 1, ours)
        # One that an earlier Penstock created.
        for annotations in ({}, {"penstock.dev/ttl-s": "?", "penstock.dev/start-s": "?"}):
            earlier = {**made, "metadata": {**made["metadata"], "annotations": annotations}}
            assert not _abandoned(earlier, created_s + ours_s, ours)
            assert _abandoned(earlier, created_s + ours_s + 1, ours)


@pytest.mark.parametrize(
    ("silence", "sentence"),
    [
        (Silence.CLOSED, "the Kubernetes API does not open it within 0.166667 s"),
        (Silence.OPEN, "its supervisor does not answer within 0.166667 s"),
    ],
)
async def test_a_line_that_stays_silent_is_lost(silence: Silence, sentence: str) -> None:
    async with cluster(ttl_s=1.0) as (fake, provider):
        fake.silent = silence
        with anyio.fail_after(60), pytest.raises(SandboxLost, match=sentence):
            async with provider.open(SandboxSpec()):
                pass
        await gone(fake)
