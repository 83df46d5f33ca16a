"""Traps of chat templates: each has a test of the property that must hold instead, on the MiniMax-M2 family, which has all of them, and
on every other renderer to which it applies.
"""

from typing import Any

import pytest

from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.messages.turns import (
    CanonicalCall,
    Turn,
    canonical_json,
    read_messages,
)
from orchestrator.gateway.render import Renderer, TokenizerAdapter, incremental
from orchestrator.gateway.render.chat_template import ChatTemplate, TemplateRefused
from tests.unit.gateway.models import IDENTITY, MINIMAX

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a thing",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
ASK = Turn(role="user", text="How many oaks?")


def says(text: str, reasoning: str | None = None, *calls: CanonicalCall) -> Turn:
    return Turn(role="assistant", text=text, reasoning=reasoning, calls=calls)


def look(at: str) -> CanonicalCall:
    return CanonicalCall("look", canonical_json({"at": at}))


def shown(renderer: Renderer, *turns: Turn, tools: Any = (), sampled: bool = False) -> str:
    """The text of a conversation as the gateway renders it."""
    return renderer.decode(incremental(renderer, turns, tools, sampled=sampled))


def test_the_minimax_format_is_as_documented(minimax: Renderer) -> None:
    turns = (
        ASK,
        says("I look.", "Where?", look("oak"), look("elm")),
        Turn(role="tool", text="1"),
        Turn(role="tool", text="2"),
    )
    assert shown(minimax, *turns) == (
        f"]~!b[]~b]system\n{IDENTITY}[e~[\n]~b]user\nHow many oaks?[e~[\n"
        "]~b]ai\n<think>\nWhere?\n</think>\n\nI look.\n<minimax:tool_call>\n"
        '<invoke name="look">\n<parameter name="at">oak</parameter>\n</invoke>\n'
        '<invoke name="look">\n<parameter name="at">elm</parameter>\n</invoke>\n</minimax:tool_call>[e~[\n'
        "]~b]tool\n<response>1</response>\n<response>2</response>[e~[\n"
        "]~b]ai\n<think>\n"
    )


def test_the_minimax_renderer_writes_what_the_template_writes_token_by_token(
    minimax: Renderer, minimax_tokens: TokenizerAdapter
) -> None:
    template = ChatTemplate(MINIMAX, {}, {})
    calls = [
        {
            "type": "function",
            "function": {"name": "look", "arguments": {"at": "a\nb", "n": 2, "deep": {"x": [None, True]}}},
        }
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "oak?"},
        {"role": "assistant", "content": "", "reasoning_content": "I count.", "tool_calls": calls},
        {"role": "tool", "content": "oak oak"},
        {"role": "assistant", "content": "Two.", "reasoning_content": "Ah."},
        {"role": "user", "content": "elm?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "elm"},
        {"role": "tool", "content": "elm"},
    ]
    turns, _ = read_messages(messages)
    made = incremental(minimax, turns, [LOOK], sampled=False)
    # The gateway renders sorted keys: equal calls have equal ids.
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = dict(sorted(call["function"]["arguments"].items()))
    assert minimax.decode(made) == template.render(messages, [LOOK], asking=True)
    assert made == minimax_tokens.encode(template.render(messages, [LOOK], asking=True))


# 1
@pytest.mark.parametrize("arguments", ['{"at": "oak"}', '{"at":"oak"}', {"at": "oak"}])
def test_1_arguments_reach_the_template_as_a_mapping_however_they_are_spelled(
    renderer: Renderer, arguments: Any
) -> None:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}],
    }
    (turn,), _ = read_messages([message])
    assert renderer.given(turn) == renderer.given(says("", None, look("oak")))


@pytest.mark.parametrize("arguments", ["not json", "[1", "[1]", "3", '"oak"', "null", "", None])
def test_1_arguments_that_are_not_an_object_never_break_a_template(
    renderer: Renderer, arguments: Any
) -> None:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}],
    }
    turns, _ = read_messages(
        [{"role": "user", "content": "oak"}, message, {"role": "tool", "tool_call_id": "a", "content": "x"}]
    )
    assert "look" in shown(renderer, *turns)


# 2
def test_2_reasoning_before_the_last_user_turn_is_kept(renderer: Renderer) -> None:
    text = shown(
        renderer, ASK, says("Two.", "I count oaks."), Turn(role="user", text="And elms?"), sampled=True
    )
    assert "I count oaks." in text and text.index("I count oaks.") < text.index("And elms?")


def test_2_the_template_receives_the_argument_not_to_clear_the_thinking() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "why"},
        {"role": "user", "content": "c"},
    ]
    assert "why" in ChatTemplate(MINIMAX, {}, {}).render(messages, asking=True)
    assert "why" not in ChatTemplate(MINIMAX, {}, {"clear_thinking": True}).render(messages, asking=True)


# 3
def test_3_consecutive_tool_results_share_one_block(renderer: Renderer) -> None:
    one = shown(
        renderer,
        ASK,
        says("", None, look("a"), look("b")),
        Turn(role="tool", text="1"),
        Turn(role="tool", text="2"),
    )
    opened = {"]~b]tool": 1, "<|im_start|>user\n<tool_response>": 1}
    assert sum(one.count(block) for block in opened) == 1
    assert "1</response>\n<response>2" in one or "1\n</tool_response>\n<tool_response>\n2" in one


# 4
def test_4_a_list_of_parts_renders_as_the_string_it_means(renderer: Renderer) -> None:
    parts = [
        {"type": "text", "text": "How many", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": " oaks?"},
    ]
    (turn,), _ = read_messages([{"role": "user", "content": parts}])
    assert turn == ASK
    assert renderer.opening([turn], (), asking=True) == renderer.opening([ASK], (), asking=True)


# 5
def test_5_a_system_message_in_mid_conversation_does_not_vanish(renderer: Renderer) -> None:
    turns, _ = read_messages(
        [
            {"role": "user", "content": "oak"},
            {"role": "assistant", "content": "Two."},
            {"role": "system", "content": "later rules"},
        ]
    )
    assert "later rules" in shown(renderer, *turns)


# 6
def test_6_the_parser_begins_inside_the_thinking_where_the_prompt_ends_there(
    minimax: Renderer, minimax_tokens: TokenizerAdapter
) -> None:
    assert minimax.starts_in_thinking
    assert minimax.decode(minimax.opening([ASK], (), asking=True)).endswith("]~b]ai\n<think>\n")
    parsed = parse_action(minimax, minimax_tokens.encode("I count.\n</think>\n\nTwo.[e~["), [])
    assert (parsed.status, parsed.turn) == ("ok", says("Two.", "I count."))
    never_closed = parse_action(minimax, minimax_tokens.encode("I count and count"), [])
    assert (never_closed.status, never_closed.turn) == ("ill_formed", says("", "I count and count"))


def test_6_a_policy_that_opens_its_thinking_again_leaves_no_marker_in_the_content(
    minimax: Renderer, minimax_tokens: TokenizerAdapter
) -> None:
    parsed = parse_action(minimax, minimax_tokens.encode("<think>\nI count.\n</think>\n\nTwo.[e~["), [])
    assert (parsed.status, parsed.turn) == ("ok", says("Two.", "I count."))


def test_6_what_follows_the_prompt_to_say_a_message_closes_the_thinking(minimax: Renderer) -> None:
    assert minimax.decode(minimax.action(says("Two.", "Hm."))) == "Hm.\n</think>\n\nTwo.[e~["
    assert minimax.decode(minimax.action(says("Two."))) == "</think>\n\nTwo.[e~["


# 7
def test_7_content_null_prints_nothing(renderer: Renderer) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": None},
    ]
    turns, _ = read_messages(messages)
    assert "None" not in shown(renderer, *turns)


# 8
def test_8_a_tool_message_after_an_assistant_without_calls_becomes_the_users(renderer: Renderer) -> None:
    with pytest.raises(TemplateRefused, match="needs a call"):
        ChatTemplate(MINIMAX, {}, {}).render(
            [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}], asking=True
        )
    turns, _ = read_messages(
        [
            {"role": "user", "content": "oak"},
            {"role": "assistant", "content": "Two."},
            {"role": "tool", "content": "an orphan"},
        ]
    )
    assert turns[-1] == Turn(role="user", text="an orphan") and "an orphan" in shown(renderer, *turns)


# 9
def test_9_the_newline_after_the_sampled_end_token_stands_between_parent_and_suffix(
    renderer: Renderer,
) -> None:
    action = renderer.action(says("Two.", "Hm."))
    between = renderer.decode(renderer.between(action, [ASK], asking=True))
    assert between.startswith("\n]~b]user\n") or between.startswith("\n<|im_start|>user\n")
    assert action[-1] in renderer.stop_ids


# 10
def test_10_an_action_that_was_cut_off_is_closed_thinking_included(renderer: Renderer) -> None:
    whole = renderer.action(says("Two oaks and an elm.", "I count again."))
    plain = renderer.decode(renderer.between(whole, [ASK], asking=True))
    end = renderer.decode([whole[-1]])
    assert renderer.decode(renderer.between(whole[:-1], [ASK], asking=True)) == end + plain
    if renderer.markers.think_close in whole:
        thinking = whole[: whole.index(renderer.markers.think_close)]
        closed = renderer.decode(renderer.between(thinking, [ASK], asking=True))
        assert closed == "</think>" + end + plain
    elif renderer.markers.think_open is not None:
        opened = renderer.decode(
            renderer.between([renderer.markers.think_open, *whole[:2]], [ASK], asking=True)
        )
        assert opened == "</think>" + end + plain


# 11
QUOTES = (
    "<|im_end|>",
    "[e~[",
    "]~b]ai",
    "<think>",
    "</think>",
    "<tool_call>",
    "</minimax:tool_call>",
    "a<think>b",
)


@pytest.mark.parametrize("quote", QUOTES)
def test_11_a_quoted_special_token_stays_text_in_every_role(renderer: Renderer, quote: str) -> None:
    def special(*turns: Turn, tools: Any = ()) -> list[int]:
        marks = [
            getattr(renderer.markers, name)
            for name in ("think_open", "think_close", "call_open", "call_close")
        ]
        ids = incremental(renderer, turns, tools, sampled=False)
        return [token for token in ids if token in {*marks, *renderer.stop_ids}]

    def talk(word: str) -> tuple[tuple[Turn, ...], Any]:
        calls = (CanonicalCall("look", canonical_json({"at": word, f"k{word}": [word]})),)
        tool = {
            "type": "function",
            "function": {"name": "look", "description": word, "parameters": {"type": "object"}},
        }
        answer = says(f"so {word} so", f"r {word} r", *calls)
        turns = (
            Turn(role="system", text=word),
            Turn(role="user", text=word),
            answer,
            Turn(role="tool", text=word),
            Turn(role="user", text=word),
        )
        return turns, [tool]

    (quoted, tools), (harmless, other) = talk(quote), talk("oak")
    assert special(*quoted, tools=tools) == special(*harmless, tools=other)
    text = shown(renderer, *quoted, tools=tools)
    assert text.count(quote) >= 5 and "\ufdd0" not in text, "and it is still there, as it was written"


@pytest.mark.parametrize("text", ["\ufdd0", "\ufdd1", "\ufdd0\ufdd1<think>", "<\ufdd0think>", "\ufdd0" * 3])
def test_11_the_guard_of_quotes_leaves_its_own_characters_as_they_are(renderer: Renderer, text: str) -> None:
    assert text in shown(renderer, Turn(role="user", text=f"a {text} b"))
