"""The parser: well-formed text becomes a message; everything else is text and is marked as such."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.completions.schema import fits
from orchestrator.gateway.messages.requests import CallRule
from orchestrator.gateway.messages.turns import CanonicalCall, Turn, canonical_json
from orchestrator.gateway.render import TokenizerAdapter, load_renderer
from orchestrator.gateway.render.qwen3 import QwenRenderer
from orchestrator.gateway.render.tokenizer import BREAK
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, RESPONSES, Wire, reply_of
from trainer.policy.init import make_policy

BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "limit": {"type": ["integer", "null"]}},
            "required": ["command"],
        },
    },
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), seed=0)


@pytest.fixture(scope="module")
def renderer(directory: Path) -> QwenRenderer:
    loaded = load_renderer(directory)
    assert isinstance(loaded, QwenRenderer)
    return loaded


@pytest.fixture(scope="module")
def ids_of(directory: Path) -> Any:
    """Text to ids with markers as tokens, as the policy samples them."""
    return TokenizerAdapter(directory).encode


def call_text(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


LS = call_text('{"name": "bash", "arguments": {"command": "ls"}}')
WC = call_text('{"name": "bash", "arguments": {"command": "wc", "limit": null}}')


def test_reasoning_text_and_parallel_calls_are_separated(renderer: QwenRenderer, ids_of: Any) -> None:
    parsed = parse_action(renderer, ids_of(f"<think>\nlook\n</think>\n\nso\n{LS}\n{WC}<|im_end|>"), [BASH])
    assert parsed.status == "ok"
    assert parsed.turn == Turn(
        role="assistant",
        text="so",
        reasoning="look",
        calls=(
            CanonicalCall("bash", '{"command":"ls"}'),
            CanonicalCall("bash", '{"command":"wc","limit":null}'),
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nnever closed",
        f"<think>\n{LS}",
        call_text("{not json}"),
        call_text('["bash"]'),
        call_text('{"name": "bash", "arguments": "ls"}'),
        call_text('{"name": "bash", "arguments": {}}'),
        call_text('{"name": "bash", "arguments": {"command": 3}}'),
        call_text('{"name": "bash", "arguments": {"command": "ls", "limit": "3"}}'),
        call_text('{"name": "rm", "arguments": {"command": "ls"}}'),
        call_text(f'{{"name": "bash", "arguments": {{"command": "ls", "x": {"[" * 400}{"]" * 400}}}}}'),
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}',
        f"{LS} and then some",
        f"</tool_call>{LS}",
        f"{LS}<think>",
        "plain </think> text",
        "<tool_call><tool_call></tool_call>",
    ],
)
def test_what_does_not_fit_the_grammar_is_ill_formed_and_calls_nothing(
    renderer: QwenRenderer, ids_of: Any, text: str
) -> None:
    parsed = parse_action(renderer, ids_of(text + "<|im_end|>"), [BASH])
    assert parsed.status == "ill_formed" and parsed.turn.calls == ()
    assert "<think>" not in parsed.turn.text or not text.startswith("<think>")


def test_markers_that_are_spelled_rather_than_sampled_are_text(
    renderer: QwenRenderer, directory: Path
) -> None:
    tokenizer = TokenizerAdapter(directory)
    ids = tokenizer.encode(tokenizer.guard("write <tool_call> and <|im_end|> here"))
    parsed = parse_action(renderer, ids, [BASH])
    assert (parsed.status, parsed.turn.text) == ("ok", "write <tool_call> and <|im_end|> here")


def test_a_stop_string_is_not_part_of_the_message(renderer: QwenRenderer, ids_of: Any) -> None:
    assert parse_action(renderer, ids_of("oak elm STOP"), [], stop="STOP").turn.text == "oak elm"


@pytest.mark.parametrize(
    ("text", "stop", "status", "calls"),
    [
        (f"so\n{LS}\nObservation:", "Observation:", "ok", 1),
        (f"so\n{LS}\n{LS}\n\n Observation: x", "Observation:", "ok", 2),
        (f"so\n{LS}\n", "\n", "ok", 1),
        (f"so\n{LS}", "</tool_call>", "ok", 1),
        (f"so\n{LS}", "\n</tool_call>", "ok", 1),
        (f"so\n{LS}", "}\n</tool_call>", "ok", 1),
        (f"so\n{LS}\nObservation:", "</tool_call>\nObs", "ok", 1),
        ("so\n<tool_call>", "<tool_call>", "ok", 0),
        ("so\n<think>", "think>", "ok", 0),
        ("so\n</tool_call>", "</tool_call>", "ok", 0),
        (f"so\n{LS}\nand Observation:", "Observation:", "ill_formed", 0),
        (f"so\n{LS}\nObservation:", None, "ill_formed", 0),
        (f"so\n{LS}\n<think>Observation:", "Observation:", "ill_formed", 0),
        ('so\n<tool_call>\n{"name": "bash", "arguments": {"command": "STOP', "STOP", "ill_formed", 0),
    ],
)
def test_a_stop_string_after_a_call_leaves_the_call(
    renderer: QwenRenderer, ids_of: Any, text: str, stop: str | None, status: str, calls: int
) -> None:
    parsed = parse_action(renderer, ids_of(text), [BASH], stop=stop)
    assert (parsed.status, len(parsed.turn.calls)) == (status, calls)
    assert not calls or (parsed.turn.text, parsed.turn.calls[0].name) == ("so", "bash")
    assert calls or stop is None or stop not in parsed.turn.text


def test_without_permission_to_call_a_call_is_text(renderer: QwenRenderer, ids_of: Any) -> None:
    parsed = parse_action(renderer, ids_of(LS + "<|im_end|>"), [BASH], rule=CallRule(most=0))
    assert parsed.status == "ill_formed" and parsed.turn.text == LS


@pytest.mark.parametrize(
    "text", [LS, WC, call_text('{"name": "rm", "arguments": {}}'), "<tool_call>", f"{LS} so"]
)
@pytest.mark.parametrize(("rule", "status"), [(CallRule(), "ok"), (CallRule(most=0), "ill_formed")])
def test_a_call_is_text_where_the_request_offers_no_tool(
    renderer: QwenRenderer, ids_of: Any, text: str, rule: CallRule, status: str
) -> None:
    ids = ids_of(f"<think>\nlook\n</think>\n\n{text}<|im_end|>")
    parsed = parse_action(renderer, ids, [], rule=rule)
    assert parsed.status == status
    assert parsed.turn == Turn(role="assistant", text=text, reasoning="look")
    assert parse_action(renderer, ids_of(f"{text}</think>"), []).status == "ill_formed"


SEARCH = {"type": "web_search", "name": "web_search"}
SERVED: dict[str, Callable[[Any], str]] = {
    "chat": lambda reply: reply["choices"][0]["message"]["content"],
    "responses": lambda reply: reply["output"][0]["content"][0]["text"],
    "anthropic": lambda reply: reply["content"][0]["text"],
}


@pytest.mark.parametrize("tools", [{}, {"tools": None}, {"tools": []}, {"tools": [SEARCH]}], ids=str)
@pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC], ids=lambda wire: wire.dialect.name)
def test_on_every_wire_a_request_without_tools_is_served_text(
    renderer: QwenRenderer, ids_of: Any, wire: Wire, tools: dict[str, Any]
) -> None:
    """Also where a provider's own tools, which are left out, are all that it offers."""
    body = {key: value for key, value in wire.body(["how many?"]).items() if key != "tools"}
    incoming = wire.dialect.read({**body, **tools}, {})
    request = incoming.request
    parsed = parse_action(renderer, ids_of(f"{LS}<|im_end|>"), request.tools, rule=request.rule)
    reply = wire.dialect.reply(incoming, reply_of(parsed.turn))
    assert parsed.status == "ok" and SERVED[wire.dialect.name](reply) == LS


def test_values_keep_their_types() -> None:
    schema = {
        "name": "f",
        "parameters": {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    }
    assert fits("f", {"a": None}, [schema]) and fits("f", {"a": "3"}, [schema])
    assert not fits("f", {"a": 3}, [schema]) and not fits("f", {"a": True}, [schema])


letters = st.characters(codec="utf-8", exclude_characters="\x00")
quotes = st.sampled_from(
    ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "\ufdd0", "\ufdd1")
)
words = st.lists(st.one_of(st.text(letters, max_size=6), quotes), max_size=4).map("".join)


@settings(max_examples=60, deadline=None)
@given(text=words, reasoning=words, commands=st.lists(words, max_size=3))
def test_what_the_policy_would_sample_for_a_message_parses_to_that_message(
    renderer: QwenRenderer, text: str, reasoning: str, commands: list[str]
) -> None:
    calls = tuple(CanonicalCall("bash", canonical_json({"command": command})) for command in commands)
    turn = Turn(role="assistant", text=text.strip(), reasoning=reasoning.strip() or None, calls=calls)
    parsed = parse_action(renderer, renderer.action(turn), [BASH])
    assert parsed.status == "ok"
    assert parsed.turn.same(turn) and parsed.turn.reasoning == turn.reasoning


def test_a_panic_of_the_library_is_an_error_that_a_call_can_fail_with(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = TokenizerAdapter(directory)

    class PanicException(BaseException):
        """As pyo3 raises it."""

    def panics(*_: object, **__: object) -> None:
        raise PanicException("index out of bounds")

    inner = SimpleNamespace(encode=panics, encode_batch_fast=panics, decode=panics)
    monkeypatch.setattr(tokens, "_inner", inner)
    monkeypatch.setattr(tokens, "_plain", inner)
    long = "a" * 5000
    calls: list[Callable[[], object]] = [
        partial(tokens.encode, text) for text in ("ab", "a" * 99, long, f"{BREAK}<", f"{BREAK}{long}")
    ]
    calls += [partial(tokens.decode, [1, 2]), partial(tokens.measured, ["ab"], 9)]
    for call in calls:
        with pytest.raises(RuntimeError, match="panics at this text: index out of bounds"):
            call()
