"""Chat Completions: the requests of its clients and the answers that they need, beyond those shared by all wires (test_dialect_properties.py)."""

from typing import Any

import pytest

from orchestrator.contracts.marks import BudgetKind
from orchestrator.gateway.http.dialects.native import NativeDialect
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import Problem, budget_exhausted, unavailable
from tests.unit.gateway.dialect_rig import CHAT, COMMAND, call, chat_body, decoded, reply_of


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def read(**body: Any) -> Any:
    return CHAT.dialect.read({"model": "m", "messages": [user("hello")], **body}, {}).request


def test_a_stream_begins_with_a_role_chunk_and_lives_by_comments_until_there_is_a_reply() -> None:
    events = CHAT.dialect.events(CHAT.read(["hello"]))
    ((_, chunk),) = decoded([events.opening()])
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events.waiting().startswith(b":") and events.waiting().endswith(b"\n\n")


def test_parallel_calls_stream_as_one_delta_with_an_index_each() -> None:
    reply = reply_of(
        Turn(
            role="assistant",
            text="",
            reasoning=None,
            calls=(call("bash", command="a"), call("bash", command="b")),
        ),
        step=4,
    )
    deltas = [
        delta
        for _, chunk in decoded(CHAT.dialect.events(CHAT.read(["hello"])).finished(reply))
        for delta in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert [(delta["index"], delta["id"]) for delta in deltas] == [(0, "call_s4_0"), (1, "call_s4_1")]


def test_a_stream_that_fails_ends_with_an_error_and_done() -> None:
    events = list(CHAT.dialect.events(CHAT.read(["hello"])).failed(unavailable("no server")))
    ((_, data),) = decoded(events)
    assert data["error"] == {
        "message": "no server",
        "type": "server_error",
        "param": None,
        "code": "unavailable",
    }
    assert events[-1] == b"data: [DONE]\n\n"


def test_a_full_context_is_reported_in_the_words_by_which_programs_know_it() -> None:
    error = CHAT.dialect.error(budget_exhausted(BudgetKind.CONTEXT, 2048))["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "context")  # LangChain, AI SDK
    assert error["message"].startswith("prompt is too long")  # Claude Code
    assert "this model's maximum context length is 2048 tokens" in error["message"]  # LiteLLM
    used_up = CHAT.dialect.error(budget_exhausted(BudgetKind.TURNS, 9))["error"]
    assert (used_up["code"], used_up["param"]) == ("budget_exhausted", "turns")
    own = NativeDialect().error(budget_exhausted(BudgetKind.CONTEXT, 2048))["error"]
    assert (own["code"], own["param"]) == ("budget_exhausted", "context")


def test_a_program_that_falls_back_from_a_stream_asks_the_same_again() -> None:
    streamed = read(stream=True, stream_options={"include_usage": True}).digest
    assert streamed == read().digest == read(stream=False).digest
    assert streamed != read(temperature=0).digest


def test_provider_side_tools_are_stripped_and_counted_and_markers_do_not_reach_the_prompt() -> None:
    bash = {"name": "bash", "parameters": COMMAND, "strict": True}
    request = read(
        tools=[
            {"type": "function", "function": bash, "cache_control": {"type": "ephemeral"}},
            {"type": "web_search_preview"},
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"type": "mcp", "server_url": "https://example.org"},
        ]
    )
    assert request.left_out == 3
    assert request.tools == ({"type": "function", "function": {"name": "bash", "parameters": COMMAND}},)


@pytest.mark.parametrize(
    "function",
    [
        {"name": "f", "parameters": "{}"},
        {"name": "f", "parameters": [1]},
        {"name": "f", "parameters": {"type": "array"}},
        {"name": "f", "parameters": {"type": "object", "properties": [1]}},
        {"name": "f", "parameters": {"type": "object", "required": "x"}},
        {"parameters": {}},
        None,
    ],
)
def test_a_tool_schema_that_is_not_an_object_is_refused_with_its_place(function: Any) -> None:
    with pytest.raises(Problem, match=r"^tools\[0\]") as problem:
        read(tools=[{"type": "function", "function": function}])
    assert (problem.value.status, problem.value.param) == (400, "tools")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "hologram"])
def test_content_that_the_policy_cannot_read_is_refused_clearly(kind: str) -> None:
    with pytest.raises(Problem, match=rf"messages\[1\] holds .*{kind}.*send text") as problem:
        read(messages=[user("look"), user([{"type": "text", "text": "at"}, {"type": kind, kind: {}}])])
    assert problem.value.status == 400


def test_results_of_parallel_calls_stand_in_the_order_of_their_calls() -> None:
    """Templates print results without ids: the policy sees only their order."""
    calls = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in ("x", "y", "z")]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("z", "x", "y")]
    turns = read(
        messages=[user("go"), {"role": "assistant", "tool_calls": calls}, *results, user("on")]
    ).turns
    assert [turn.text for turn in turns[2:]] == ["x", "y", "z", "on"]


def test_unknown_fields_are_tolerated_and_settings_of_the_run_prevail() -> None:
    request = read(
        frobnicate={"deep": [1]},
        temperature=9,
        logit_bias={},
        tool_choice="auto",
        max_tokens=5,
        max_completion_tokens=7,
    )
    assert request.max_tokens == 5 and request.rule.most is None
    assert read(tool_choice="none").rule.most == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "must be a JSON object"),
        ({}, "messages must be a non-empty list"),
        ({"messages": "hello"}, "messages must be a non-empty list"),
        (
            {"messages": [user("x")], "n": 2},
            "n is not supported: ask several times instead: at once with other metadata",
        ),
        ({"messages": [user("x")], "max_tokens": "9"}, "max_tokens must be a positive integer"),
        ({"messages": [user("x")], "stop": 3}, "stop must be"),
        ({"messages": [user("x")], "stop": ["a", "b\0"]}, "must not hold NUL"),
        ({"messages": [user("x")], "tools": {}}, "tools must be a list"),
    ],
)
def test_a_malformed_body_is_refused_in_one_sentence(body: Any, words: str) -> None:
    with pytest.raises(Problem, match=words) as problem:
        CHAT.dialect.read(body, {})
    assert problem.value.status == 400 and "\n" not in problem.value.message


def test_an_agents_name_that_is_not_valid_text_is_converted_so_that_its_step_can_be_recorded() -> None:
    named = CHAT.dialect.read(chat_body(["hello"]), {"x-penstock-agent": "side\udcff"}).request.agent
    assert named.encode() and named.startswith("side")


def test_a_conversation_with_a_text_body_is_read_whatever_its_spacing() -> None:
    one, other = chat_body(["hello"]), dict(reversed(chat_body(["hello"]).items()))
    assert CHAT.dialect.read(one, {}).request == CHAT.dialect.read(other, {}).request
