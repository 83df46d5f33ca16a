"""Every message of NATS comes again, three times, and its effects are counted."""

from collections import Counter
from random import Random
from urllib.parse import urlsplit

import anyio
import nats
import pytest
from nats.aio.msg import Msg

from ops.lab.chaos.echo import TIMES, Echo
from ops.lab.chaos.plan import FaultKind
from ops.lab.chaos.relay import listening
from orchestrator.bus.subjects import HEADER_MSG_ID
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.ports import LOOPBACK
from tests.waiting import eventually

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(60)]
PATIENCE_S = 30.0
COUNT = 5


async def test_every_message_comes_again_three_times_under_other_ids_also_when_nats_was_away_at_first(
    nats_server: EmbeddedNats,
) -> None:
    url = urlsplit(nats_server.url)
    assert url.hostname is not None and url.port is not None
    login = url.netloc.rpartition("@")[0]
    received: list[Msg] = []

    async def hear(message: Msg) -> None:
        received.append(message)

    client = await nats.connect(nats_server.url)
    await client.subscribe("work.echo-test.>", cb=hear)
    await client.flush()
    try:
        async with listening((url.hostname, url.port)) as relay, anyio.create_task_group() as tasks:
            relay.part(FaultKind.CUT, delay_s=0, seed=0)
            echo = Echo(url=f"nats://{login}@{LOOPBACK}:{relay.port}", random=Random(0))
            tasks.start_soon(echo.run)
            await eventually(lambda: echo.refused > 0, within_s=PATIENCE_S)
            assert echo.copies == 0
            relay.pass_on()
            await eventually(lambda: relay.connections > 0, within_s=PATIENCE_S)
            sent: list[str] = []

            async def send(name: str) -> None:
                sent.append(name)
                await client.publish("work.echo-test.a", name.encode(), headers={HEADER_MSG_ID: name})

            async def listens() -> bool:
                if not echo.copies:
                    await send(f"first-{len(sent)}")
                return echo.copies > 0

            await eventually(listens, within_s=PATIENCE_S, every_s=0.02)
            for number in range(COUNT):
                await send(f"then-{number}")
            times = Counter[str]()

            def all_again() -> bool:
                times.clear()
                times.update(message.data.decode() for message in received)
                return all(times[f"then-{number}"] == 1 + TIMES for number in range(COUNT))

            await eventually(all_again, within_s=PATIENCE_S)
            await eventually(lambda: echo.copies == len(received) - len(sent), within_s=PATIENCE_S)
            tasks.cancel_scope.cancel()
    finally:
        await client.close()
    assert max(times.values()) == 1 + TIMES  # no copy is copied
    ids = [(message.headers or {})[HEADER_MSG_ID] for message in received]
    assert len(set(ids)) == len(ids)
