"""Streams for clients that split them into lines of text: some characters of replies end a line there."""

import json
from typing import Any

import httpx
import pytest

from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import unavailable
from tests.unit.gateway.dialect_rig import WIRES, Wire, call, decoded, reply_of, streamed

LINES = "a\u2028b\u2029c\x85d\x0be\x1cf\r\ng"


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.dialect.name)
def test_a_client_that_splits_a_stream_into_lines_of_text_can_read_each(wire: Wire) -> None:
    turn = Turn(role="assistant", text=LINES, reasoning=LINES, calls=(call("bash", command=LINES),))
    incoming = wire.dialect.read({**wire.body(["hello"]), "model": LINES, "stream": True}, {})
    events = wire.dialect.events(incoming)
    failed = [events.opening(), *events.failed(unavailable(LINES))]
    for stream in (streamed(wire, incoming, reply_of(turn)), failed):
        found: list[Any] = []
        for line in httpx.Response(200, content=b"".join(stream)).iter_lines():
            field, _, value = line.partition(": ")
            assert field in ("", "event", "data"), line
            if field == "data" and value != "[DONE]":
                found.append(json.loads(value))
        assert found == [data for _, data in decoded(stream)]
