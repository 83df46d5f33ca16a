"""Publishes every message again, three times, late and in another order, under ids that no de-duplication knows.

| produces | waits for | unblocked by |
|---|---|---|
| copies of tasks, steps, results and assignments | originals, as any subscriber of their subjects receives them | their publishers |
| another connection, if one ended or could not be made | NATS | its return |
"""

from dataclasses import dataclass
from random import Random

import anyio
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from orchestrator.bus.subjects import HEADER_MSG_ID

SUBJECTS = ("tasks.>", "work.>", "steps.>", "results.>")
TIMES = 3
HOLD = 16  # messages whose copies are mixed
HOLD_S = 0.3
AGAIN_S = 0.1
_ECHO = "Penstock-Echo"


@dataclass(slots=True, kw_only=True)
class Echo:
    """`copies` counts the copies that NATS accepted, `refused` the connections that ended or could not be made."""

    url: str
    random: Random
    copies: int = 0
    refused: int = 0
    _turn: int = 0

    async def run(self) -> None:
        """Run until cancelled; NATS may be down, or stop."""
        while True:
            client = Client()
            try:
                await client.connect(self.url, name="chaos-echo", allow_reconnect=False, error_cb=_silent)
                await self._repeat(client)
            except (OSError, nats.errors.Error):
                pass  # it is down, or stopped
            finally:
                with anyio.move_on_after(1, shield=True):
                    await client.close()
            self.refused += 1
            await anyio.sleep(AGAIN_S)

    async def _repeat(self, client: Client) -> None:
        received: list[Msg] = []
        full = anyio.Event()

        async def on_message(message: Msg) -> None:
            if not (message.headers and _ECHO in message.headers):
                received.append(message)
                if len(received) >= HOLD:
                    full.set()

        for subject in SUBJECTS:
            await client.subscribe(subject, cb=on_message)
        while not client.is_closed:
            with anyio.move_on_after(HOLD_S):
                await full.wait()
            full = anyio.Event()
            copies, received[:] = received * TIMES, []
            self.random.shuffle(copies)
            for copy in copies:
                self._turn += 1
                headers = {**(copy.headers or {}), _ECHO: str(self._turn)}
                if HEADER_MSG_ID in headers:
                    headers[HEADER_MSG_ID] += f":echo:{self._turn}"
                await client.publish(copy.subject, copy.data, headers=headers)
            if copies:
                await client.flush()  # a reply means that it accepted them
                self.copies += len(copies)


async def _silent(error: Exception) -> None:
    """Drop the errors of a connection: the faults cause them on purpose."""
