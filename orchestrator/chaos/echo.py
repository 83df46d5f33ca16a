"""Every message again, three times, late and in another order, under ids that no de-duplication knows.

| produces | waits for | unblocked by |
|---|---|---|
| copies of tasks, steps, results and assignments | originals, as any subscriber of their subjects hears them | whoever publishes |
"""

from random import Random

import anyio
import nats
import nats.errors
from nats.aio.msg import Msg

from orchestrator.bus.subjects import HEADER_MSG_ID

SUBJECTS = ("tasks.>", "work.>", "steps.>", "results.>")
TIMES = 3
HOLD = 16  # messages whose copies are mixed
HOLD_S = 0.3
_ECHO = "Penstock-Echo"


async def echo(url: str, random: Random) -> None:
    """Until cancelled."""
    heard: list[Msg] = []
    more = anyio.Event()

    async def hear(message: Msg) -> None:
        nonlocal more
        if not (message.headers and _ECHO in message.headers):
            heard.append(message)
            if len(heard) >= HOLD:
                more.set()

    try:
        client = await nats.connect(url, name="chaos-echo", allow_reconnect=False)
    except (OSError, nats.errors.Error):
        return  # it is away: nothing to repeat
    try:
        for subject in SUBJECTS:
            await client.subscribe(subject, cb=hear)
        turn = 0
        while not client.is_closed:
            with anyio.move_on_after(HOLD_S):
                await more.wait()
            more = anyio.Event()
            copies, heard[:] = heard * TIMES, []
            random.shuffle(copies)
            for copy in copies:
                turn += 1
                headers = {**(copy.headers or {}), _ECHO: str(turn)}
                if HEADER_MSG_ID in headers:
                    headers[HEADER_MSG_ID] += f":echo:{turn}"
                await client.publish(copy.subject, copy.data, headers=headers)
    except (OSError, nats.errors.Error):
        return
    finally:
        with anyio.move_on_after(1, shield=True):
            await client.close()
