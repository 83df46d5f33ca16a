"""Every wire carries the same: the recorded reply is the served one, streamed or not, and the replayed reply is the recorded one."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.messages.turns import CanonicalCall, Turn, canonical_json
from orchestrator.pool.sanitize import clean
from tests.unit.gateway.dialect_rig import (
    ANTHROPIC,
    CHAT,
    RESPONSES,
    WIRES,
    Entry,
    Wire,
    reply_of,
    spoken,
    streamed,
    without,
)

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.dialect.name)
unhurried = settings(deadline=None, max_examples=50)  # the machine is shared
texts = st.text(max_size=12).map(lambda text: clean(text).strip())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """The parser's results for an action: any text, reasoning, and calls of a function, of a freeform tool, of a namespace."""
    calls = st.one_of(
        st.dictionaries(texts, values, max_size=3).map(lambda a: CanonicalCall("bash", canonical_json(a))),
        texts.map(lambda text: CanonicalCall("apply_patch", canonical_json({"input": text}))),
        texts.map(lambda text: CanonicalCall("apply_patch", canonical_json({"input": text, "why": 1}))),
        texts.map(lambda text: CanonicalCall("mcp__files__read", canonical_json({"path": text}))),
    )
    return Turn(
        role="assistant",
        text=draw(texts),
        reasoning=draw(texts) or None,
        calls=tuple(draw(st.lists(calls, max_size=3))),
    )


replies = st.builds(
    reply_of,
    turns(),
    st.integers(0, 999),
    st.sampled_from((Finish.STOP, Finish.LENGTH)),
    st.sampled_from((None, "END")),
)


@wires
@unhurried
@given(reply=replies, pings=st.integers(0, 2))
def test_a_folded_stream_is_the_reply_that_is_not_streamed(wire: Wire, reply: Reply, pings: int) -> None:
    incoming = wire.dialect.read({**wire.body(["hello"]), "stream_options": {"include_usage": True}}, {})
    whole = json.loads(json.dumps(wire.dialect.reply(incoming, reply)))
    wire.shape.model_validate(whole)
    odds = ("created", "created_at", "completed_at", "index", "object", "stop_details")
    folded, whole = without(wire.fold(streamed(wire, incoming, reply, pings)), odds), without(whole, odds)
    if wire is CHAT:  # chunks cannot express null for absent fields
        folded, whole = (without_nothing(value) for value in (folded, whole))
    assert folded == whole


def without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nothing(item) for key, item in value.items() if item not in (None, "", [])}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


@wires
@unhurried
@given(reply=replies, shuffle=st.randoms())
def test_a_replayed_reply_is_the_recorded_one_with_its_ids_and_results(
    wire: Wire, reply: Reply, shuffle: Any
) -> None:
    results = [(identifier, f"result {i}") for i, identifier in enumerate(reply.call_ids())]
    shuffled = list(results)
    shuffle.shuffle(shuffled)
    history: list[Entry] = ["hello", reply, shuffled] if results else ["hello", reply]
    system, user, replayed, *rest = wire.read([*history, "go on"]).request.turns
    assert (system.role, system.text, user.text) == ("system", "Rules.", "hello")
    assert reply.turn.same(replayed) and (replayed.reasoning, replayed.calls) == (
        reply.turn.reasoning,
        reply.turn.calls,
    )
    if reply.turn.calls or (wire is not CHAT and (reply.turn.reasoning or wire is RESPONSES)):
        assert replayed.hint == reply.step
    assert [turn.text for turn in rest] == [*(text for _, text in results), "go on"]
    assert {turn.role for turn in rest[:-1]} <= {"tool"}


@unhurried
@given(history=st.lists(replies, max_size=3))
def test_one_conversation_reads_the_same_on_every_wire(history: list[Reply]) -> None:
    conversation: list[Entry] = ["hello"]
    for step, reply in enumerate(history):
        reply = reply_of(reply.turn, step)
        results = [(identifier, "done") for identifier in reply.call_ids()]
        conversation += [reply, results or "go on"]
    chat, *others = (wire.read(conversation).request for wire in WIRES)
    for other in others:
        assert other.tools == chat.tools, "one prompt for all wires"
        assert len(other.turns) == len(chat.turns)
        assert all(a.same(b) for a, b in zip(other.turns, chat.turns, strict=True))


@unhurried
@given(reply=replies)
def test_reasoning_survives_a_client_that_replays_only_its_sealed_form(reply: Reply) -> None:
    """Codex and the AI SDK drop the text of a reasoning item, and the ids of all items."""
    sent = [
        {key: value for key, value in item.items() if key not in ("id", "status", "content")}
        if item["type"] == "reasoning"
        else {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in spoken(RESPONSES, reply)["output"]
    ]
    body = {"input": [{"role": "user", "content": "hello"}, *sent, {"role": "user", "content": "go on"}]}
    _, replayed, _ = RESPONSES.dialect.read(body, {}).request.turns
    assert reply.turn.same(replayed) and replayed.reasoning == reply.turn.reasoning


@unhurried
@given(reply=replies, emptied=st.booleans())
def test_thinking_that_a_client_cleared_still_matches(reply: Reply, emptied: bool) -> None:
    blocks = [
        {**block, "thinking": ""} if block["type"] == "thinking" else block
        for block in spoken(ANTHROPIC, reply)["content"]
        if emptied or block["type"] != "thinking"
    ]
    body = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": blocks}]}
    replayed = ANTHROPIC.dialect.read(body, {}).request.turns[1]
    assert replayed.reasoning is None and reply.turn.same(replayed)
