"""Bytes that anyone may send: the client reads them or leaves them out, and can always send a dead letter of them."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import nats.errors
import pytest
from nats.protocol.parser import Parser

from orchestrator.bus import suspects
from orchestrator.bus.base import BusError, Delivery, Outgoing
from orchestrator.bus.client import BadAnswer, NatsClient, answered
from orchestrator.bus.dead_letters import dead_letter
from orchestrator.bus.message_guard import apart
from orchestrator.bus.pull import deliveries_of
from orchestrator.bus.suspects import Suspects
from orchestrator.bus.wire import check_size, wire_headers

pytestmark = pytest.mark.anyio

MAX_PAYLOAD = 1 << 20
SENDABLE = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass
class Received:
    """A message as its consumer has it."""

    subject: str = "tasks.demo.x"
    body: bytes = b"body"
    headers: dict[str, str] = field(default_factory=dict)
    stream: str = "TASKS"
    deliveries: int = 1

    @property
    def schema(self) -> str | None:
        return self.headers.get("Penstock-Schema")

    @property
    def msg_id(self) -> str | None:
        return self.headers.get("Nats-Msg-Id")

    async def nothing(self, *_: object) -> None:
        return

    ack = nak = term = in_progress = nothing


FULL = b"x" * (MAX_PAYLOAD - 1000)
LETTERS: dict[str, Delivery] = {
    "a long schema": Received(headers={"Penstock-Schema": "S" * 50_000}, body=FULL),
    "a long schema of wide characters": Received(headers={"Penstock-Schema": "\U0001f30d" * 12_000}, body=FULL),
    "many headers": Received(headers={f"X-{n}": "v" * 40 for n in range(1_000)}, body=FULL),
    "headers like ours": Received(headers={f"Penstock-Dead-{n}": "v" * 40 for n in range(1_000)}, body=FULL),
    "a long subject of escapes": Received(subject="tasks.demo." + "\\xff" * 4_000, body=FULL),
    "a long id": Received(headers={"Nats-Msg-Id": "\U0001f30d" * 256}, body=FULL),
    "names that cannot be sent": Received(headers={'a"b': "x", "": "y", "a(": "z", "é": "w"}),
    "everything": Received(
        subject="tasks.demo." + "\\xff" * 4_000,
        headers={"Nats-Msg-Id": "\U0001f30d" * 256, "Penstock-Schema": "é" * 9_000, "X": "\U0001f30d" * 9_000},
        body=FULL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LETTERS)
def test_a_dead_letter_of_anything_can_be_sent(case: str) -> None:
    letter = dead_letter(LETTERS[case], "\U0001f30d" * 2_000, MAX_PAYLOAD)
    headers = wire_headers(letter)
    check_size(letter, headers, MAX_PAYLOAD)
    assert all(SENDABLE.fullmatch(key) for key in headers)
    assert sum(len(key) + len(value.encode()) + 4 for key, value in headers.items()) < 60_000
    assert len(letter.schema) <= 256


def test_the_headers_of_a_message_are_those_of_its_letter() -> None:
    letter = dead_letter(
        Received(headers={"X": "y", "Status": "503", "Nats-Rollup": "all"}), "r", MAX_PAYLOAD
    )
    assert (
        letter.headers.items() >= {"X": "y", "Status": "503"}.items() and "Nats-Rollup" not in letter.headers
    )


PARSED: dict[str, tuple[bytes, bytes, str, dict[str, str] | None]] = {
    "text": (b"a.b", b"NATS/1.0\r\nk: v\r\n\r\n", "a.b", {"k": "v"}),
    "another language": ("a.é".encode(), b"NATS/1.0\r\nk: v\r\n\r\n", "a.é", {"k": "v"}),
    "a subject of other bytes": (b"a.\xff", b"NATS/1.0\r\nk: v\r\n\r\n", "a.\\xff", {"k": "v"}),
    "blanks that are none": (b"a.\f\v", b"NATS/1.0\r\nk: v\r\n\r\n", "a.\f\v", {"k": "v"}),
    "short headers": (b"a.b", b"N\r\n\r\n", "a.b", None),
    "a status of other bytes": (b"a.b", b"NATS/1.0 \xff\xff\xff\r\n\r\n", "a.b", None),
    "a status": (b"a.b", b"NATS/1.0 404 No Messages\r\n\r\n", "a.b", {"Status": "404", "Description": "No Messages"}),
}  # fmt: skip


@pytest.mark.parametrize("case", PARSED)
async def test_the_library_reads_messages_by_way_of_our_client(case: str) -> None:
    """A new nats-py that no longer calls what we override, or no longer splits lines by these expressions, fails here."""
    subject, headers, as_text, as_headers = PARSED[case]
    client = NatsClient()
    got: list[object] = []
    client._subs[1] = SimpleNamespace(
        _received=0, _max_msgs=0, _jsi=None, _future=SimpleNamespace(cancelled=bool, set_result=got.append)
    )
    sizes = len(headers), len(headers) + 4
    await Parser(client).parse(b"HMSG %b 1 reply.\xff %d %d\r\n%bbody\r\n" % (subject, *sizes, headers))
    await Parser(client).parse(b"MSG %b 1 4\r\nbody\r\n" % subject)
    assert [(m.subject, m.reply, m.data, m.headers) for m in got] == [  # type: ignore[attr-defined]
        (as_text, "reply.\\xff", b"body", as_headers),
        (as_text, "", b"body", None),
    ]


REPLIES = {
    "$JS.ACK.S.C.3.1.1.1.1": 3,
    "$JS.ACK._.hash.S.C.4.1.1.1.1": 4,
    "$JS.ACK._.hash.S.C.4.1.1.1.1.more": 4,
    "$JS.ACK.S.C.x.1.1.1.1": None,
    "$JS.ACK.S.C.².1.1.1.1": None,
    f"$JS.ACK.S.C.{'9' * 5_000}.1.1.1.1": None,
    "$JS.ACK.S": None,
    "$JS.FC.S.C.1.1.1.1.1": None,
    "": None,
}


@pytest.mark.parametrize("reply", REPLIES)
def test_the_reply_subject_says_how_often_a_message_was_delivered(reply: str) -> None:
    assert deliveries_of(SimpleNamespace(reply=reply)) == REPLIES[reply]


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        raise error

    return ask


async def test_an_answer_that_is_not_one_of_nats_is_an_error_of_the_bus() -> None:
    for error in (
        ValueError("no JSON"),
        KeyError("seq"),
        TypeError("7"),
        AttributeError("x"),
        RecursionError(),
    ):
        with pytest.raises(BadAnswer):
            await answered(raising(error))
    for ours in (nats.errors.TimeoutError(), OSError(), AssertionError()):
        with pytest.raises(type(ours)):
            await answered(raising(ours))


@pytest.mark.parametrize("error", [KeyError, ValueError, RecursionError, MemoryError, AssertionError])
def test_one_core_message_can_end_only_itself(error: type[Exception]) -> None:
    with apart("tests", subject="a" * 9_000):
        raise error("its fault")


def test_what_the_platform_lacks_is_not_the_fault_of_a_message() -> None:
    with pytest.raises(BusError), apart("tests", subject="a"):
        raise BusError("away")


def test_a_suspect_that_another_process_settled_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Suspects()
    assert found.failed(Received(body=b"one")) is not None and found.failing
    monkeypatch.setattr(suspects, "GONE_S", -1.0)
    assert not found.failing


def test_an_equal_body_under_another_schema_is_another_message() -> None:
    one, other = (Received(headers={"Penstock-Schema": f"Hovercraft/{n}"}, body=b"b") for n in (1, 2))
    assert dead_letter(one, "r", MAX_PAYLOAD).msg_id != dead_letter(other, "r", MAX_PAYLOAD).msg_id
    found = Suspects()
    found.failed(one)
    found.settled(other)
    assert found.failing
    found.settled(one)
    assert not found.failing


def test_a_letter_of_a_message_that_was_never_sent_has_its_body() -> None:
    sent = Outgoing(
        subject="tasks.demo.x", msg_id="m", schema="TaskSubmitted/1", body=b"b", headers={"X": "y"}
    )
    letter = dead_letter(sent, "r", MAX_PAYLOAD)
    assert (letter.body, letter.schema, letter.headers["X"]) == (b"b", "TaskSubmitted/1", "y")
