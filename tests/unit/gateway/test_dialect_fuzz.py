"""Any JSON on any wire is an answer or a refusal of one sentence; never a fault of ours.

Bodies start as requests of real clients; then parts of them become any JSON at all. `PENSTOCK_FUZZ_EXAMPLES` sets how many are tried.
"""

import copy
import json
import os
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.gateway.http.base import read_json
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.forest import Forest
from tests.unit.gateway.conftest import _directory
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire, call, reply_of

EXAMPLES = int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "25"))
hurried = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.dialect.name)

WORDS = [
    "role", "content", "type", "text", "tool_calls", "function", "arguments", "name", "id", "call_id", "tool_use", "tool_result",
    "input", "output", "reasoning", "summary", "thinking", "signature", "user", "assistant", "system", "tool", "developer", "message",
    "input_text", "output_text", "function_call", "function_call_output", "custom", "namespace", "image_url", "max_tokens", "stop",
    "tool_choice", "none", "auto", "stream", "", "0", "\x00", "\ud800", "<|im_end|>", "</think>", "x" * 300,
]  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
REPLY = reply_of(
    Turn(
        role="assistant",
        text="ok",
        reasoning="so",
        calls=(call("bash", command="ls"), call("apply_patch", input="+")),
    ),
    3,
)
CONVERSATION: list[str | Reply | list[tuple[str, str]]] = [
    "do it",
    REPLY,
    [("call_3_0", "a"), ("call_3_1", "b")],
    "and now?",
]
SPICE = {
    "stream": True, "stop": ["END"], "stop_sequences": ["END"], "max_tokens": 9, "max_completion_tokens": 9, "max_output_tokens": 9,
    "tool_choice": "auto", "temperature": 1, "n": 1, "previous_response_id": None, "metadata": {"a": "b"}, "thinking": {"type": "enabled"},
    "stream_options": {"include_usage": True}, "reasoning": {"effort": "low"}, "system": [{"type": "text", "text": "x"}],
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of a JSON value."""
    found = [path]
    if isinstance(value, dict):
        found += [below for key, item in value.items() for below in places(item, (*path, key))]
    elif isinstance(value, list):
        found += [below for i, item in enumerate(value) for below in places(item, (*path, i))]
    return found


@st.composite
def bodies(draw: st.DrawFn, wire: Wire) -> Any:
    """A client's body with up to three parts replaced, dropped, doubled or moved."""
    body: Any = copy.deepcopy({**draw(st.sampled_from([{}, SPICE])), **wire.body(CONVERSATION)})
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(body)))
        if not path:
            return draw(anything)
        parent = body
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(["replace", "replace", "replace", "drop", "double", "move"]))
        if how == "drop":
            del parent[path[-1]]
        elif how == "double" and isinstance(parent, list):
            parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
        elif how == "move":
            parent[path[-1]] = copy.deepcopy(_at(body, draw(st.sampled_from(places(body)))))
        else:
            parent[path[-1]] = draw(anything)
    return body


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


class _Raw:
    """A request that has only a body."""

    client_max_size = 1 << 20

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    async def read(self) -> bytes:
        return self._raw


def problem_of(wire: Wire, renderer: Renderer, raw: bytes) -> Problem | None:
    """The gateway's work on these bytes up to the policy, and on the policy's answer after it; returns the refusal if it refuses."""
    try:
        reading = read_json(_Raw(raw))  # type: ignore[arg-type]
        try:
            reading.send(None)
        except StopIteration as done:
            body = done.value
        incoming = wire.dialect.read(body, make_mocked_request("POST", "/").headers)
        request = incoming.request
        tools = (
            sha256(msgspec.json.encode(request.tools, order="deterministic")).hexdigest()
            if request.tools
            else ""
        )
        placement = Forest(renderer).place(request.turns, request.tools, tools)
        assert len(placement.ids)
    except Problem as problem:
        return problem
    except RecursionError:  # the routes turn this error into the same refusal
        return bad_request("the body is nested too deeply")
    finally:
        reading.close()
    msgspec.json.encode(wire.dialect.reply(incoming, REPLY))
    events = wire.dialect.events(incoming)
    stream = b"".join([events.opening(), events.waiting(), *events.finished(REPLY)])
    stream += b"".join(wire.dialect.events(incoming).failed(bad_request("x")))
    assert stream.endswith(b"\n\n")
    return None


def check(wire: Wire, renderer: Renderer, raw: bytes) -> None:
    problem = problem_of(wire, renderer, raw)
    if problem is not None:
        assert 400 <= problem.status < 500 and problem.message and "\n" not in problem.message, (
            problem.message
        )
        msgspec.json.encode(wire.dialect.error(problem))


@pytest.fixture(scope="session", params=["policy", "minimax-m2", "template"])
def shown(request: pytest.FixtureRequest, models_root: Any) -> Renderer:
    from orchestrator.gateway.render import load_renderer

    return load_renderer(_directory(request.param, models_root))


@wires
@hurried
@given(data=st.data())
def test_a_clients_body_with_anything_in_it_is_answered_or_refused(
    wire: Wire, shown: Renderer, data: st.DataObject
) -> None:
    body = data.draw(bodies(wire))
    check(wire, shown, json.dumps(body).encode())


@wires
@hurried
@given(
    body=anything
    | st.dictionaries(
        st.sampled_from(["messages", "input", "tools", "system", "model", "stream", "stop"]), anything
    )
)
def test_any_json_is_answered_or_refused(wire: Wire, shown: Renderer, body: Any) -> None:
    check(wire, shown, json.dumps(body).encode())


@wires
@hurried
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(wire: Wire, shown: Renderer, raw: bytes) -> None:
    check(wire, shown, raw)


def test_an_untouched_body_is_answered_on_every_wire(shown: Renderer) -> None:
    for wire in (CHAT, RESPONSES, ANTHROPIC):
        assert problem_of(wire, shown, json.dumps(wire.body(CONVERSATION)).encode()) is None


# Earlier findings, fixed since.
FOUND: list[tuple[Wire, dict[str, Any]]] = [
    (RESPONSES, {"input": [{"type": []}]}),
    (RESPONSES, {"input": [{"type": {"a": 1}, "role": "user", "content": "x"}]}),
    (
        RESPONSES,
        {
            "input": [
                "x",
                {"type": "reasoning", "content": 5, "summary": True},
                {"role": "user", "content": "x"},
            ]
        },
    ),
]


@pytest.mark.parametrize(("wire", "body"), FOUND)
def test_what_once_failed_is_answered_or_refused(wire: Wire, body: dict[str, Any], shown: Renderer) -> None:
    check(wire, shown, json.dumps(body).encode())
