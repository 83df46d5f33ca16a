"""A NATS cluster of three hosts: acknowledged messages outlive the leader, and publishing continues; the seconds are printed."""

import statistics
import time
from collections.abc import AsyncIterator

import anyio
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.nats import NatsBus
from tests.e2e.stack_rig import place, until
from tests.hosts.network import Network, remove_leftovers, standing_on
from tests.hosts.services import START_S, NatsCluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(200), pytest.mark.tier("hosts")]

RESUMED_S = 10.0
MAX_S = 2.5 * RESUMED_S


@pytest.fixture
async def cluster() -> AsyncIterator[NatsCluster]:
    remove_leftovers()
    network = Network()
    try:
        hosts = [network.add(f"nats{number}") for number in (1, 2, 3)]
        with place() as directory, standing_on(network.add("client")):
            cluster = NatsCluster.prepare(hosts, directory)
            for host in hosts:
                cluster.start(host)
            yield cluster
            network.remove()  # before the directory goes that servers write to
    finally:
        network.remove()


def step(number: int) -> Outgoing:
    return Outgoing(
        subject=subjects.steps("unused", "1"),
        msg_id=f"1:1:{number}:step",
        schema="StepRecorded/1",
        body=b"%d" % number,
    )


async def test_publishing_goes_on_after_the_leader_died_and_nothing_is_missing(
    cluster: NatsCluster,
) -> None:
    async with NatsBus.connect(cluster.url, patience_s=START_S) as bus:
        await bus.ensure_streams()

        async def thrice() -> bool:
            return await cluster.replicas("STEPS") == 3

        await until(thrice, "STEPS is on three servers", START_S)
        published, took = 0, []
        for _ in range(3):  # a round with two candidates at once is repeated, after another 4 to 9 s
            for _ in range(20):
                await bus.publish(step(published))
                published += 1
            leader = await cluster.leader("STEPS")
            assert leader is not None
            leader.kill("nats")
            killed = time.monotonic()
            await bus.publish(step(published))
            took.append(time.monotonic() - killed)
            published += 1
            cluster.start(leader)
            await until(thrice, "the dead server has all of it again", START_S)
        median_s = statistics.median(took)
        print(
            f"publishing resumed after {median_s:.1f} s ({RESUMED_S:g} s), at most {max(took):.1f} s ({MAX_S:g} s)"
        )
        async with bus.subscribe(subjects.consume_steps("unused")) as arriving:
            seen: set[bytes] = set()
            with anyio.fail_after(30):
                while len(seen) < published:
                    for delivery in await arriving.take(64):
                        seen.add(delivery.body)
                        await delivery.ack()


async def test_who_names_three_servers_gives_streams_three_replicas_and_who_knows_one_takes_none_away(
    cluster: NatsCluster,
) -> None:
    one = cluster.url_of(cluster.hosts[0])
    for named, expected in ((one, 1), (cluster.url, 3), (one, 3)):
        async with NatsBus.connect(named, patience_s=START_S) as bus:
            await bus.ensure_streams()

        async def so_many(expected: int = expected) -> bool:
            return await cluster.replicas("STEPS") == expected

        await until(so_many, f"STEPS is on {expected} servers", START_S)
