"""What NATS carries comes again, three times, and what was made of it is counted."""

from collections import Counter
from collections.abc import Callable
from random import Random
from urllib.parse import urlsplit

import anyio
import nats
import pytest
from nats.aio.msg import Msg

from orchestrator.bus.subjects import HEADER_MSG_ID
from orchestrator.chaos.echo import TIMES, Echo
from orchestrator.chaos.plan import Kind
from orchestrator.chaos.relay import listening
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.embedded.ports import LOOPBACK

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(60)]
PATIENCE_S = 30.0
COUNT = 5


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not holds():
            await anyio.sleep(0.005)


async def test_every_message_comes_again_three_times_under_other_ids_also_when_nats_was_away_at_first(
    nats_server: EmbeddedNats,
) -> None:
    url = urlsplit(nats_server.url)
    assert url.hostname is not None and url.port is not None
    login = url.netloc.rpartition("@")[0]
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    client = await nats.connect(nats_server.url)
    await client.subscribe("work.echo-test.>", cb=hear)
    await client.flush()
    try:
        async with listening((url.hostname, url.port)) as relay, anyio.create_task_group() as tasks:
            relay.part(Kind.CUT, delay_s=0, seed=0)
            echo = Echo(f"nats://{login}@{LOOPBACK}:{relay.port}", Random(0))
            tasks.start_soon(echo.run)
            await until(lambda: echo.refused > 0)
            assert echo.copies == 0
            relay.pass_on()
            await until(lambda: relay.connections > 0)
            sent: list[str] = []
            with anyio.fail_after(PATIENCE_S):
                while not echo.copies:  # until it listens
                    sent.append(f"first-{len(sent)}")
                    await client.publish(
                        "work.echo-test.a", sent[-1].encode(), headers={HEADER_MSG_ID: sent[-1]}
                    )
                    await anyio.sleep(0.02)
            for number in range(COUNT):
                sent.append(f"then-{number}")
                await client.publish("work.echo-test.a", sent[-1].encode(), headers={HEADER_MSG_ID: sent[-1]})
            times = Counter[str]()

            def all_again() -> bool:
                times.clear()
                times.update(message.data.decode() for message in heard)
                return all(times[f"then-{number}"] == 1 + TIMES for number in range(COUNT))

            await until(all_again)
            await until(lambda: echo.copies == len(heard) - len(sent))
            tasks.cancel_scope.cancel()
    finally:
        await client.close()
    assert max(times.values()) == 1 + TIMES  # no copy is copied
    ids = [(message.headers or {})[HEADER_MSG_ID] for message in heard]
    assert len(set(ids)) == len(ids)
