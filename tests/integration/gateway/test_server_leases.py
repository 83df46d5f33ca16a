"""Leases of rollout servers on a real database: one owner at a time, and no writes without a lease."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import DrainKind, ServerState
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.gateway.servers.lease import LeaseLost, ServerLease
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.pool.drain_requests import DrainRequests
from orchestrator.pool.draining import drainables
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.heartbeats import write_heartbeat
from orchestrator.pool.server_leases import ServerRows
from orchestrator.runtime.watchdog import watching
from orchestrator.settings.config import Config
from tests.builders import make_run
from tests.integration.runner.test_draining import WATCHDOG, order, until_state

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


async def wrote_before(engine: AsyncEngine, run_id: int, url: str, owner: str) -> None:
    """A live lease and a drain order, as code that kept each spelling of a URL wrote them."""
    async with engine.begin() as connection:
        await connection.execute(
            text(
                """INSERT INTO rollout_servers (run_id, url, owner, lease_until, state, version, draining)
                VALUES (:run, :url, :owner, now() + interval '1 hour', 'ready', 4, now())"""
            ),
            {"run": run_id, "url": url, "owner": owner},
        )


@pytest.mark.parametrize("of_own_run", [True, False])
async def test_a_lease_that_older_code_wrote_in_another_spelling_is_a_lease_of_the_same_server(
    engine: AsyncEngine, gateway: AsyncEngine, of_own_run: bool
) -> None:
    first, second = await run_named(engine, "one"), await run_named(engine, "two")
    url = "http://host/v1"
    await wrote_before(engine, first, "HTTP://Host:80/v1/", "older")
    run = first if of_own_run else second
    mine = ServerRows(gateway, run, owner="mine", ttl_s=30.0)
    assert await mine.claim(url, steal=True) is None
    followed = await ServerRows(gateway, first, owner="x", ttl_s=30.0).read(url)
    assert followed is not None and (followed.owner, followed.version, followed.live) == ("older", 4, True)
    await expire(engine)
    assert (await mine.claim(url, steal=False) is None) is of_own_run
    assert await mine.claim(url, steal=True) is not None
    async with engine.connect() as connection:
        left = await connection.scalar(
            text("SELECT lease_until FROM rollout_servers WHERE url <> :url AND run_id = :run"),
            {"url": url, "run": run},
        )
    assert left is None, "the gateway that has the server has taken the older row's lease over"


async def test_a_drain_order_that_older_code_wrote_in_another_spelling_holds_and_can_be_taken_back(
    engine: AsyncEngine, gateway: AsyncEngine
) -> None:
    run, url = await run_named(engine, "one"), "http://host/v1"
    for spelling in ("HTTP://Host:80/v1/", "http://host/v1/"):
        await wrote_before(engine, run, spelling, "mine")
    assert await ServerRows(gateway, run, owner="mine", ttl_s=30.0).claim(url, steal=False) == 1
    orders = DrainRequests(of_servers=True)

    async def beat() -> set[str]:
        with watching("gateway", WATCHDOG) as dog:
            async with gateway.begin() as connection:
                await write_heartbeat(connection, run, dog, orders)
                await write_heartbeat(connection, run, dog, orders)  # it reports the orders that it read
        return set(orders.servers)

    assert await beat() == {url}
    found = await until_state(engine, run, DrainKind.SERVER, "drained")
    assert found.id == url
    assert (await order(engine, run, DrainKind.SERVER, "HTTP://HOST/v1", last=True)).draining
    assert not (await order(engine, run, DrainKind.SERVER, f"{url}/", undo=True)).draining
    assert await beat() == set()
    async with engine.connect() as connection:
        assert [one.draining for one in await drainables(connection, run, 60.0) if one.id == url] == [False]
