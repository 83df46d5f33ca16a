"""Bytes that no client library sends, by a plain socket: one message can end only itself, and the connection lives."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from secrets import token_hex

import anyio
import nats
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, Delivery, Outgoing, StreamFull
from orchestrator.bus.nats import NatsBus
from orchestrator.bus.pull import NatsDelivery, Timing
from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.contract.bus_rig import first_streams, letters_of
from tests.raw_nats import RawNats, raw_nats
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

TIMING = Timing(expires_s=2.0, heartbeat_s=0.5, poll_interval_s=0.2)
STREAMS = tuple(replace(stream, max_bytes=32 << 20) for stream in subjects.STREAMS)
V1 = b"NATS/1.0"
HEADERS = {
    **{f"status {word}": V1 + b"\r\nStatus: %b\r\n\r\n" % word.encode() for word in ("100", "404", "408", "409", "503", "new")},
    "an inline status 503": V1 + b" 503\r\n\r\n",
    "an inline status 100": V1 + b" 100 Idle Heartbeat\r\n\r\n",
    "an inline status of other bytes": V1 + b" \xff\xfe\r\n\r\n",
    "an inline status cut within a character": V1 + " ééé\r\n\r\n".encode(),
    "a description of other bytes": V1 + b" 503 \xff\r\na: \xff\r\n\r\n",
    "a key of other bytes": V1 + b"\r\n\xff: x\r\n\r\n",
    "a value of other bytes": V1 + b"\r\nPenstock-Schema: \xff\r\nNats-Msg-Id: \xff\r\n\r\n",
    "control characters": V1 + b"\r\nPenstock-Schema: a\nb\0\x1b[2J\r\nNats-Msg-Id: a\nb\r\n\r\n",
    "a key that cannot be sent on": V1 + b'\r\na"(b: x\r\n: y\r\n\r\n',
    "no line": V1 + b"\r\n\r\n",
    "no end": V1,
    "too short": b"N\r\n\r\n",
    "one byte": b"\xff",
    "no version": b"\r\n\r\n",
    "another beginning": b"\xff" * 30,
}  # fmt: skip
LAST_TOKENS = {
    "other bytes": b"\xff\xfe",
    "half of a surrogate pair": b"\xed\xa0\x80",
    "a NUL": b"a\0b",
    "a form feed": b"a\fb",
    "a vertical tab": b"a\vb",
    "only a form feed": b"\f",
    "wildcards": b"*",
    "two characters of one": b"a\xc3",
    "a long one": b"x" * 3_900,
    "a colon": b"a:b",
}


@pytest.fixture
async def bus(nats_server: EmbeddedNats) -> AsyncIterator[NatsBus]:
    prefix = f"t{token_hex(4)}"
    async with NatsBus.connect(
        nats_server.url, name="test", prefix=prefix, timing=TIMING, streams=STREAMS
    ) as bus:
        await first_streams(bus)
        yield bus
    foreign = await nats.connect(nats_server.url)
    for stream in subjects.STREAMS:
        await foreign.jetstream().delete_stream(f"{prefix.upper()}_{stream.name}")
    await foreign.close()


@pytest.fixture
async def raw(nats_server: EmbeddedNats) -> AsyncIterator[RawNats]:
    async with raw_nats(nats_server.url) as raw:
        yield raw


async def good(bus: NatsBus) -> None:
    await bus.publish(
        Outgoing(subject=subjects.tasks("demo", "good"), msg_id=token_hex(8), schema="", body=b"good")
    )


async def stored(bus: NatsBus) -> int:
    async with bus._link.session() as connection:
        return int((await connection.js.stream_info(bus._stream_prefix + "TASKS")).state.messages)


async def emptied(bus: NatsBus) -> bool:
    return await stored(bus) == 0


async def taken(bus: NatsBus, number: int) -> list[Delivery]:
    """The next deliveries, each buried as a consumer does with what it cannot use."""
    found: list[Delivery] = []
    async with bus.subscribe(subjects.consume_tasks(), batch=8) as arriving:
        with anyio.fail_after(60):
            while len(found) < number:
                for delivery in await arriving.take(8):
                    found.append(delivery)
                    await bus.dead_letter(delivery, "its reason")
    return found


def poison(bus: NatsBus, case: str) -> tuple[bytes, bytes | None]:
    root = bus._subject_prefix.encode() + b"tasks.demo."
    if case in LAST_TOKENS:
        return root + LAST_TOKENS[case], None
    return root + b"good", HEADERS[case]


@pytest.mark.parametrize("case", [*HEADERS, *LAST_TOKENS])
async def test_a_message_of_any_bytes_that_nats_stores_is_delivered_once_and_becomes_a_dead_letter(
    bus: NatsBus, raw: RawNats, case: str
) -> None:
    subject, headers = poison(bus, case)
    await raw.publish(subject, b"poison", headers=headers)
    await good(bus)
    poisons = (
        await stored(bus) - 1
    )  # the stream takes messages in order: now it has taken or refused the first one
    connection = bus._link.current
    found = await taken(bus, poisons + 1)
    assert [each.body[-6:] for each in found] == [b"poison"] * poisons + [b"good"], raw.refusals
    assert bus._link.current is connection, "the connection was lost"
    await eventually(partial(emptied, bus))
    letters: list[Delivery] = []
    async with bus.subscribe(letters_of("TASKS")) as arriving:
        with anyio.fail_after(60):
            while len(letters) < poisons + 1:
                for letter in await arriving.take(8):
                    letters.append(letter)
                    await letter.ack()
    assert [each.body[-6:] for each in letters] == [b"poison"] * poisons + [b"good"]


REPLIES = {
    "none": b"",
    "of another service": b"_INBOX.x",
    "with words for numbers": b"$JS.ACK.S.C.x.y.z.t.p",
    "with few words": b"$JS.ACK.S",
    "with a number too large": b"$JS.ACK.S.C." + b"9" * 3_000 + b".1.1.1.1",
    "as of a stream": b"$JS.ACK.S.C.1.1.1.1.1",
    "other bytes": b"$JS.ACK.\xff.C.1.1.1.1.1",
}


@pytest.mark.parametrize("reply", REPLIES)
async def test_what_others_send_to_the_inbox_of_a_pull_is_dropped_and_messages_still_arrive(
    bus: NatsBus, raw: RawNats, reply: str
) -> None:
    stream = bus._stream_prefix.encode() + b"TASKS"
    await raw.listen(b"$JS.API.CONSUMER.MSG.NEXT." + stream + b".>")
    async with bus.subscribe(subjects.consume_tasks(), batch=8) as arriving:

        async def forge() -> None:
            inbox = await raw.reply_of_next()
            await raw.publish(inbox, b"forged", reply=REPLIES[reply])
            await raw.publish(inbox, b"forged", reply=REPLIES[reply], headers=V1 + b"\r\nStatus: 100\r\n\r\n")
            await good(bus)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forge)
            with anyio.fail_after(60):
                [delivery] = await arriving.take(8)
        assert delivery.body == b"good"
        await delivery.ack()


async def test_a_listener_keeps_listening_whatever_subjects_and_headers_arrive(
    bus: NatsBus, raw: RawNats
) -> None:
    root = bus._subject_prefix.encode() + b"accepted.demo."
    connection = bus._link.current
    async with bus.listen(subjects.every_answer("demo")) as notices:
        for token in LAST_TOKENS.values():
            await raw.publish(root + token, b"odd")
        for headers in HEADERS.values():
            await raw.publish(root + b"odd", b"odd", headers=headers)
        await raw.publish(root + b"s", b"good")
        with anyio.fail_after(60):
            async for notice in notices:
                if notice.body == b"good":
                    break
    assert bus._link.current is connection, "the connection was lost"


ANSWERS = {
    "no JSON": b"x",
    "other bytes": b"\xff",
    "a list": b"[]",
    "a number": b"7",
    "nested too deeply": b"[" * 100_000,
    "nothing known": b"{}",
    "words for numbers": b'{"stream": 1, "seq": "x"}',
    "an error that is a word": b'{"error": "x"}',
    "an error without a code": b'{"error": {}}',
    "an error with a word for its code": b'{"error": {"code": "x", "err_code": []}}',
    "an error with more words": b'{"error": {"code": 500, "more": 1}}',
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_that_is_not_that_of_nats_is_a_failed_try_and_the_message_is_stored(
    bus: NatsBus, raw: RawNats, answer: str
) -> None:
    """A foreign service answers what it should only read, before the stream is created again."""
    await raw.listen(bus._subject_prefix.encode() + b"tasks.>")
    async with bus._link.session() as connection:
        await connection.js.delete_stream(bus._stream_prefix + "TASKS")

    async def spoil() -> None:
        inbox = await raw.reply_of_next()
        await raw.end_listening()
        await raw.publish(inbox, ANSWERS[answer])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(spoil)
        with anyio.fail_after(60):
            await good(bus)
    assert await stored(bus) == 1


async def test_a_message_whose_dead_letter_is_refused_stays_in_its_stream_until_one_is_stored(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    bury = bus.dead_letter

    async def full_at_first(message: Delivery | Outgoing, reason: str, *, kept: bool = False) -> None:
        assert isinstance(message, NatsDelivery)
        if len(refused) < 2:
            refused.append(message.deliveries)
            raise StreamFull("the disk is full")
        await bury(message, reason, kept=kept)

    monkeypatch.setattr(bus, "dead_letter", full_at_first)
    await good(bus)
    consumer = replace(subjects.consume_tasks(), ack_wait_s=0.3, max_deliver=1)
    async with bus.subscribe(consumer, batch=8) as arriving, anyio.create_task_group() as tasks:
        [delivery] = await arriving.take(8)
        assert delivery.deliveries == 1
        tasks.start_soon(arriving.take, 8)  # the message comes to no taker again
        await eventually(partial(emptied, bus))
        tasks.cancel_scope.cancel()
    assert refused == [2, 3]


async def test_a_message_that_the_library_cannot_send_is_refused_and_not_tried_without_end(
    bus: NatsBus,
) -> None:
    message = Outgoing(subject="tasks.demo.x", msg_id="m", schema="", body=b"", headers={'a"b': "c"})
    with anyio.fail_after(60), pytest.raises(BusError, match="NATS carries no such message"):
        await bus.publish(message)
