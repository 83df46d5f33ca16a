"""A rollout server that is reserved for evaluations: it serves the version that they pin, while another server continues to serve training."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway_client import NativeLlm, OpenSession
from orchestrator.settings.config import Config
from tests.integration.gateway.killable_server import KillableServer, killable
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]
POLICY_VERSIONS = 3

OpenRig = Callable[[], AbstractAsyncContextManager[tuple[Rig, RolloutServer, RolloutServer]]]


@pytest.fixture(scope="module")
def lives(policies: Policies) -> Iterator[list[KillableServer]]:
    with killable(policies.model) as one, killable(policies.model) as other:
        yield [one, other]


@pytest.fixture
async def open_two(
    database_url: str,
    nats_server: EmbeddedNats,
    lives: list[KillableServer],
    policies: Policies,
    tmp_path: Path,
) -> OpenRig:
    """(rig, the server that trains, the reserved one); version 0 is published, and no other yet."""
    for server in lives:
        await anyio.to_thread.run_sync(server.start)

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Rig, RolloutServer, RolloutServer]]:
        urls = [server.url for server in lives]
        sections = {"servers": {"embedded": 2, "evaluation": 1, "version_poll_interval_s": 0.05}}
        async with open_rig(
            database_url, nats_server.url, urls, policies, tmp_path, sections=sections
        ) as rig:
            rig.start_ingest()
            await rig.publish(0)
            training, reserved = rig.gateway.pool.servers
            await eventually(lambda: training.ready and reserved.ready)
            yield rig, training, reserved

    return opened


async def evaluation(rig: Rig, version: int) -> tuple[int, OpenSession]:
    """A running rollout of an evaluation that pins `version`, with its session."""
    rollout = await rig.new_rollout()
    async with rig.engine.begin() as connection:
        await connection.exec_driver_sql(
            f"UPDATE groups SET state = 'dispatched', pinned_version = {version}"
            f" WHERE group_id = (SELECT group_id FROM rollouts WHERE rollout_id = {rollout})"
        )
    return await rig.open(rollout, version=version)


async def over(rig: Rig, rollout: int) -> None:
    """The rollout's group is scored."""
    async with rig.engine.begin() as connection:
        await connection.exec_driver_sql(
            f"UPDATE groups SET state = 'scored' WHERE group_id = (SELECT group_id FROM rollouts WHERE rollout_id = {rollout})"
        )


async def ask(rig: Rig, session: OpenSession) -> None:
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([{"role": "user", "content": "oak"}])


def serving(rig: Rig, server: RolloutServer, purpose: str) -> float | None:
    """The version that a server serves, by the gateway's metrics."""
    labels = {"server": server.url, "purpose": purpose}
    return rig.gateway.metrics.registry.get_sample_value("penstock_gateway_server_version", labels)


async def versions_of(rig: Rig, rollout: int) -> set[int]:
    (step,) = await rig.stored(rollout, 1)
    return {version for version, _, _ in step.spans}


async def test_an_older_version_is_evaluated_while_training_goes_on_with_newer_ones(
    open_two: OpenRig,
) -> None:
    async with open_two() as (rig, training, reserved):
        await rig.publish(1)
        await eventually(lambda: (training.version, reserved.version) == (1, 1) and reserved.ready)
        evaluated, session = await evaluation(rig, 0)
        trained, other = await rig.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, session)
            tasks.start_soon(ask, rig, other)
            tasks.start_soon(rig.publish, 2)
        assert await versions_of(rig, evaluated) == {0}
        assert await versions_of(rig, trained) <= {1, 2}
        await eventually(lambda: training.version == 2 and serving(rig, training, "train") == 2.0)
        assert reserved.version == 0
        # The alert PenstockWeightsBehind compares these with the newest version: servers that only train.
        assert serving(rig, training, "train") == 2.0 and serving(rig, reserved, "eval") == 0.0
        assert serving(rig, reserved, "train") is None
        assert len(rig.proxies[1].sent) == 1, "the reserved server had the evaluation's call and no other"
        await over(rig, evaluated)
        await eventually(lambda: reserved.version == 2)


async def test_each_call_gets_its_own_of_two_versions(open_two: OpenRig) -> None:
    async with open_two() as (rig, _, reserved):
        await rig.publish(1)
        await rig.publish(2)
        first, one = await evaluation(rig, 1)
        second, two = await evaluation(rig, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, two)  # waits until the older evaluation is over
            await eventually(lambda: reserved.ready and reserved.version == 1)
            await ask(rig, one)
            assert await versions_of(rig, first) == {1}
            await over(rig, first)
        assert await versions_of(rig, second) == {0}


async def test_after_a_restart_of_the_gateway_a_session_still_has_its_version(open_two: OpenRig) -> None:
    async with open_two() as (rig, _, reserved):
        await rig.publish(1)
        rollout, session = await evaluation(rig, 0)
        await eventually(lambda: reserved.ready and reserved.version == 0)
        await rig.stop_gateway()
        async with rig.another_gateway() as (gateway, _):
            async with NativeLlm(gateway.url, session.token) as llm:
                await llm.complete([{"role": "user", "content": "oak"}])
            assert await versions_of(rig, rollout) == {0}


@pytest.mark.parametrize(
    "servers", [{"evaluation": 1}, {"evaluation": 2, "urls": ["http://a:1", "http://b:1"]}]
)
def test_one_server_at_least_is_left_for_training(servers: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="leave at least one rollout server for training"):
        Config.model_validate({"servers": servers})
