"""Leases of rollout servers on a real database: one owner at a time, and no writes without a lease."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import ServerState
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.gateway.servers.lease import LeaseLost, ServerLease
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.server_leases import ServerRows
from orchestrator.settings.config import Config
from tests.builders import make_run

pytestmark = [pytest.mark.anyio, pytest.mark.services]

URL = "http://127.0.0.1:30000"


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with open_engine(database_url, Role.GATEWAY) as engine:
        yield engine


async def run_named(engine: AsyncEngine, name: str) -> int:
    return (await make_run(engine, Config.model_validate({"run": {"name": name}}))).run_id


async def expire(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE rollout_servers SET lease_until = clock_timestamp() - interval '1 s'")
        )


async def test_a_server_has_one_owner_who_loses_it_only_after_its_lease_ran_out(
    engine: AsyncEngine, gateway: AsyncEngine
) -> None:
    run = await run_named(engine, "one")
    one, two = (ServerRows(gateway, run, owner=owner, ttl_s=30.0) for owner in ("one", "two"))
    assert await one.claim(URL, steal=False) == 1
    assert await two.claim(URL, steal=True) is None and await one.renew(URL, 1)
    await expire(engine)
    assert await two.claim(URL, steal=False) is None, "its owner may only have been kept from the database"
    assert await two.claim(URL, steal=True) == 2
    assert not await one.renew(URL, 1)
    assert not await one.write(URL, 1, ServerState.READY, 3), "a late owner changes nothing"
    row = await two.read(URL)
    assert row is not None and (row.owner, row.version, row.live) == ("two", None, True)
    await two.release(URL, 2)
    assert await one.claim(URL, steal=False) == 3, "what is given back is free at once"


async def test_a_row_takes_any_words_of_a_server(engine: AsyncEngine, gateway: AsyncEngine) -> None:
    run = await run_named(engine, "one")
    rows = ServerRows(gateway, run, owner="one", ttl_s=30.0)
    assert await rows.claim(URL, steal=False) == 1
    odd = "bad\x00\ud800" + "s" * 5000
    assert await rows.write(URL, 1, ServerState.FAILED, None, odd, "a\x00")
    async with engine.connect() as connection:
        detail = await connection.scalar(text("SELECT detail FROM rollout_servers"))
    assert detail is not None and detail.startswith("bad\ufffd?ss") and len(detail) == 500


async def test_a_restarted_gateway_has_its_servers_back_at_once_under_a_new_epoch(
    engine: AsyncEngine, gateway: AsyncEngine
) -> None:
    run = await run_named(engine, "one")
    before, after = (ServerLease(ServerRows(gateway, run, owner="same", ttl_s=30.0), URL) for _ in range(2))
    await before.turn()
    await after.turn()
    assert (before.epoch, after.epoch) == (1, 2)
    await after.write(ServerState.READY, 5)
    with pytest.raises(LeaseLost):
        await before.write(ServerState.FAILED, None)
    assert before.epoch is None


async def test_a_server_belongs_to_one_run_at_a_time(engine: AsyncEngine, gateway: AsyncEngine) -> None:
    first, second = await run_named(engine, "one"), await run_named(engine, "two")
    one, two = (
        ServerRows(gateway, first, owner="one", ttl_s=30.0),
        ServerRows(gateway, second, owner="two", ttl_s=30.0),
    )
    assert await one.claim(URL, steal=True) == 1
    assert await two.claim(URL, steal=True) is None
    await expire(engine)
    assert await two.claim(URL, steal=True) == 1


async def test_a_server_in_another_spelling_is_the_same_server(
    engine: AsyncEngine, gateway: AsyncEngine
) -> None:
    first, second = await run_named(engine, "one"), await run_named(engine, "two")
    one = ServerRows(gateway, first, owner="one", ttl_s=30.0)
    two = ServerRows(gateway, second, owner="two", ttl_s=30.0)
    url, *others = (
        RolloutServer(RolloutServerClient(spelling)).url
        for spelling in ("http://host/v1", "HTTP://Host:80/v1/", "http://HOST:/v1")
    )
    assert await one.claim(url, steal=True) == 1
    assert [await two.claim(other, steal=True) for other in others] == [None, None]
    assert await two.claim(RolloutServer(RolloutServerClient("https://host/v1")).url, steal=True) == 1


async def test_a_restarted_gateway_gives_up_the_servers_that_it_no_longer_has(
    engine: AsyncEngine, gateway: AsyncEngine
) -> None:
    run, other = await run_named(engine, "one"), "http://127.0.0.1:30001"
    killed = ServerRows(gateway, run, owner="same", ttl_s=30.0)
    foreign = ServerRows(gateway, run, owner="another", ttl_s=30.0)
    gone = "http://127.0.0.1:30002"
    assert [await killed.claim(url, steal=False) for url in (URL, gone)] == [1, 1]
    assert await foreign.claim(other, steal=False) == 1
    again = ServerRows(gateway, run, owner="same", ttl_s=30.0)
    assert await again.leave_others([URL]) == 1
    rows = {url: await again.read(url) for url in (URL, other, gone)}
    assert {url: row.live for url, row in rows.items() if row} == {URL: True, other: True, gone: False}
    assert await foreign.claim(gone, steal=False) == 2, "what is given up is free at once"
