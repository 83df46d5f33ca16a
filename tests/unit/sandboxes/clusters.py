"""Attempts over a fake cluster, well or hurt."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from sandboxes.base import File, SandboxSpec
from sandboxes.kubernetes.provider import KubernetesProvider
from sandboxes.owner import Work, working_on
from tests.unit.sandboxes.fake_kubernetes import ALREADY, VERBS, Fake, Faults, Object, place, serving


@asynccontextmanager
async def cluster(
    *, processes: bool = False, faults: Faults | None = None, **settings: object
) -> AsyncIterator[tuple[Fake, KubernetesProvider]]:
    """A server, and a provider that knows it."""
    with place() as directory:
        fake = Fake(directory, processes=processes, faults=faults)
        async with serving(fake) as known:
            yield fake, KubernetesProvider(replace(known, **{"ttl_s": 10.0, "start_s": 60.0, **settings}))  # type: ignore[arg-type]


def work(rollout: int, attempt: int = 1, epoch: int = 1) -> Work:
    return Work("a run", rollout, attempt, epoch, "attempt")


async def gone(fake: Fake, within_s: float = 20.0) -> None:
    """Until nothing is left."""
    with anyio.fail_after(within_s):
        while fake.pods or fake.secrets:
            await anyio.sleep(0.02)


HURT = {
    "throttled": 0.02,
    "broken": 0.02,
    "unanswered": 0.05,
    "cut": 0.03,
    "slow": 0.05,
    "watches_dropped": 0.4,
    "watches_gone": 0.2,
}


async def attempts(count: int, faults: Faults, *, least: int) -> None:
    """So many attempts over a server that is hurt, at least `least` times in each way, as often told that something is already there: one pod
    each, and none is left."""
    async with cluster(faults=faults, start_s=120.0) as (fake, provider):
        turn, slow = anyio.Semaphore(40), random.Random(3)

        async def pull(_: Object) -> None:
            await asyncio.sleep(slow.uniform(0.1, 0.8))

        fake.pending = pull

        async def attempt(rollout: int) -> None:
            async with turn:
                with working_on(work(rollout)):
                    async with provider.open(
                        SandboxSpec(files={"/app/number": File(str(rollout).encode())})
                    ) as sandbox:
                        assert await sandbox.get("/app/number") == str(rollout).encode()

        async with anyio.create_task_group() as group:
            for rollout in range(count):
                group.start_soon(attempt, rollout)
        await gone(fake)
        assert len(fake.made) == count and set(fake.made.values()) == {1}
        assert all(faults.happened[name] >= least for name in (*HURT, ALREADY)), faults.happened
        assert fake.used <= VERBS
