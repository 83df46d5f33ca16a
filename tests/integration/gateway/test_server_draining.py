"""A rollout server that drains gets no new calls, ends those that it has, and follows the weights; undone, it serves at once."""

import anyio
import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import DrainKind
from orchestrator.gateway.servers.pool import preferred
from orchestrator.runtime.watchdog import watching
from tests.integration.gateway.test_servers import (
    OpenRig,
    ask,
    lives,
    open_pair,
    session_at,
    until,
)
from tests.integration.runner.test_draining import WATCHDOG, order, until_state

__all__ = ["lives", "open_pair"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]
POLICY_VERSIONS = 2


async def test_a_server_that_drains_ends_its_call_gets_no_other_and_follows_the_weights(
    open_pair: OpenRig,
) -> None:
    with watching("gateway", WATCHDOG):
        async with open_pair() as rig:
            (mine, other), (here, there) = rig.gateway.pool.servers, rig.proxies
            _, running = await session_at(rig, mine)
            _, later = await session_at(rig, mine)
            arrives = here.held["/generate"] = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, rig, running)
                await until(lambda: "/generate" in here.seen)
                await order(rig.engine, rig.run_id, DrainKind.SERVER, mine.url)
                await until(lambda: mine.draining)
                await ask(rig, later, max_tokens=8)
                assert here.seen.count("/generate") == len(there.requests) == 1
                assert rig.gateway.pool.calls_at(mine.url) == 1  # its running call continues
                arrives.set()
            assert len(here.sent) == 1 and len(here.sent[0][1]) == 400
            drained = await until_state(rig.engine, rig.run_id, DrainKind.SERVER, "drained")
            assert drained.id == mine.url and not other.draining
            await rig.publish(1)
            await until(lambda: (mine.version, other.version) == (1, 1))
            assert mine.ready
            with pytest.raises(
                ConfigurationError, match=rf"without the rollout server {other.url} no server is left"
            ):
                await order(rig.engine, rig.run_id, DrainKind.SERVER, other.url)
            await order(rig.engine, rig.run_id, DrainKind.SERVER, mine.url, undo=True)
            await until(lambda: not mine.draining)
            await ask(rig, later, max_tokens=8)
            assert len(here.requests) == 2


async def test_without_any_other_server_calls_are_held_and_one_that_was_broken_off_goes_on_where_it_was(
    open_pair: OpenRig,
) -> None:
    async with open_pair() as rig:
        pool = rig.gateway.pool
        mine, other = pool.servers
        pool.drain([other.url])
        _, running = await session_at(rig, mine)
        here, there = rig.proxies
        here.stops = [50]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, running)
            await until(lambda: here.standing)
            pool.drain([mine.url, other.url])
            here.go_on()
            _, later = await rig.open()
            tasks.start_soon(lambda: ask(rig, later, max_tokens=8))
            await until(lambda: len(here.sent) == 2)
            assert pool.calls_at(mine.url) in (0, 1)
            assert [len(output) for _, output in here.sent] == [50, 350] and not there.requests
            await until(lambda: pool.calls_at(mine.url) == 0)
            pool.drain([mine.url])
            await until(lambda: there.sent)
        assert len(here.requests) == 2 and preferred(pool.servers, "1:1") is not None
