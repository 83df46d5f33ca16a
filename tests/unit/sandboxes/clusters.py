"""Attempts over a fake cluster, healthy or disturbed."""

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from sandboxes.base import File, SandboxSpec
from sandboxes.kubernetes.provider import KubernetesProvider
from sandboxes.owner import LeasedWork, WorkKind, working_on
from tests.unit.sandboxes.fake_kubernetes import ALREADY, VERBS, Fake, Faults, place, serving
from tests.unit.sandboxes.fake_runtime import Object
from tests.waiting import eventually


@asynccontextmanager
async def cluster(
    *, processes: bool = False, faults: Faults | None = None, **settings: object
) -> AsyncIterator[tuple[Fake, KubernetesProvider]]:
    """A server, and a provider that knows it."""
    with place() as directory:
        fake = Fake(directory, processes=processes, faults=faults)
        async with serving(fake) as known:
            yield fake, KubernetesProvider(replace(known, **{"ttl_s": 10.0, "start_s": 60.0, **settings}))  # type: ignore[arg-type]


def work(rollout: int, attempt: int = 1, epoch: int = 1) -> LeasedWork:
    return LeasedWork(run="a run", rollout=rollout, attempt=attempt, epoch=epoch, kind=WorkKind.ATTEMPT)


async def gone(fake: Fake, within_s: float = 60.0) -> None:
    """Wait until nothing is left."""
    await eventually(lambda: not fake.pods and not fake.secrets, within_s=within_s)


TURNS = 40  # attempts at the same time
HURT: dict[str, Any] = {
    "throttled": 0.02,
    "broken": 0.02,
    "unanswered": 0.05,
    "cut": 0.03,
    "slow": 0.05,
    "watches_dropped": 0.4,
    "watches_gone": 0.2,
}


async def attempts(count: int, faults: Faults, *, least: int) -> None:
    """So many attempts over a disturbed server. Each kind of fault, and each "already there", happens at least `least` times. There is
    one pod per attempt, and none is left."""
    # A busy machine opens a line late: the patience with one is a sixth of `ttl_s`.
    async with cluster(faults=faults, start_s=120.0, ttl_s=60.0) as (fake, provider):
        turn, slow = anyio.Semaphore(TURNS), random.Random(3)

        async def pull(_: Object) -> None:
            """An image that takes as long as some later pods take to be made: fewer than there are turns."""
            until = min(count, len(fake.made) + slow.randrange(1, TURNS // 4))
            await eventually(lambda: len(fake.made) >= until, within_s=math.inf)

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
