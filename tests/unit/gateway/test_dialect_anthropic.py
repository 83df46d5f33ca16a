"""Anthropic Messages: the requests of Claude Code and others, and the answers that they need."""

from typing import Any

import pytest

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.http.dialects.errors import error_for
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import Problem, bad_request, session_over, unavailable
from tests.unit.gateway.dialect_rig import ANTHROPIC, COMMAND, call, decoded, reply_of, spoken, streamed

BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={};"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def used(identifier: str, command: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "bash", "input": {"command": command}}


def read(*messages: Any, **body: Any) -> Any:
    given = {"model": "m", "max_tokens": 9, "messages": list(messages) or [user("hello")], **body}
    return ANTHROPIC.dialect.read(given, {}).request


def test_message_start_comes_at_once_and_signs_of_life_are_ping_events() -> None:
    events = ANTHROPIC.dialect.events(ANTHROPIC.read(["hello"]))
    found = decoded([events.opening(), events.waiting()])
    assert [name for name, _ in found] == ["message_start", "ping"]
    assert found[1][1] == {"type": "ping"} and found[0][1]["message"]["content"] == []


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (session_over("sealed"), "invalid_request_error"),
        (unavailable("no server"), "overloaded_error"),
        (Problem(500, "internal_error", "we failed"), "api_error"),
    ],
)
def test_a_stream_that_fails_ends_with_an_error_event(problem: Problem, kind: str) -> None:
    ((name, data),) = decoded(ANTHROPIC.dialect.events(ANTHROPIC.read(["hello"])).failed(problem))
    assert name == data["type"] == "error"
    assert data["error"] == {"type": kind, "message": problem.message}


@pytest.mark.parametrize(
    "system",
    [
        lambda nonce: BILLING.format(nonce) + "\nYou are Claude Code.\nRules.",
        lambda nonce: [text(BILLING.format(nonce)), text("You are Claude Code.\nRules.")],
        lambda nonce: [
            text(
                BILLING.format(nonce) + "\nYou are Claude Code.\nRules.", cache_control={"type": "ephemeral"}
            )
        ],
    ],
    ids=["string", "block", "in a block"],
)
def test_a_billing_header_that_changes_with_every_request_changes_neither_prompt_nor_digest(
    system: Any,
) -> None:
    one, other = read(system=system("74943")), read(system=system("0aaa9"))
    assert one == other
    assert (one.turns[0].role, one.turns[0].text) == ("system", "You are Claude Code.\nRules.")


def test_a_system_prompt_that_speaks_of_the_header_later_keeps_it() -> None:
    text = "Never print x-anthropic-billing-header: values."
    assert read(system=text).turns[0].text == text
    assert read(system=BILLING.format(1)).turns[0].role == "user", "nothing else was in it"


def test_cache_markers_that_move_between_turns_change_nothing() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": "bash", "input_schema": COMMAND}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hi"}
    marked = read(
        user([text("go", **mark)]),
        assistant({**used("toolu_1", "ls"), **mark}),
        user([{**result, **mark}]),
        system=[text("Rules.", **mark)],
        tools=[{**tool, **mark}],
    )
    plain = read(
        user("go"),
        assistant(used("toolu_1", "ls")),
        user([{**result, "content": [text("hi")]}]),
        system="Rules.",
        tools=[tool],
    )
    assert (marked.turns, marked.tools) == (plain.turns, plain.tools)


def test_parallel_results_and_errors_become_tool_messages_before_the_users_words() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "b", "content": "no such file", "is_error": True},
        {"type": "tool_result", "tool_use_id": "a", "content": [text("one"), text("two")]},
        text("and now?"),
    ]
    turns = read(
        user("go"), assistant(text("both"), used("a", "ls"), used("b", "cat x")), user(results)
    ).turns
    assert [(turn.role, turn.text) for turn in turns[2:]] == [
        ("tool", "onetwo"),
        ("tool", "Error: no such file"),
        ("user", "and now?"),
    ]
    assert [made.mapping()["command"] for made in turns[1].calls] == ["ls", "cat x"]


def test_minted_signatures_name_the_step_and_foreign_ones_are_accepted() -> None:
    (block,) = spoken(ANTHROPIC, reply_of(Turn(role="assistant", text="", reasoning="because"), 12))[
        "content"
    ]
    turns = read(
        user("a"), assistant(block, text("")), user("b"), assistant({**block, "signature": "EqMB"}), user("c")
    ).turns
    assert [(turn.reasoning, turn.hint) for turn in turns if turn.role == "assistant"] == [
        ("because", 12),
        ("because", None),
    ]
    assert (
        block["signature"]
        == spoken(ANTHROPIC, reply_of(Turn(role="assistant", text="", reasoning="because"), 12))["content"][
            0
        ]["signature"]
    )


def test_redacted_thinking_is_left_out_counted_and_matches_any_reasoning() -> None:
    request = read(
        user("a"), assistant({"type": "redacted_thinking", "data": "EmwK"}, text("yes")), user("b")
    )
    assert request.left_out == 1
    assert Turn(role="assistant", text="yes", reasoning="whatever was thought").same(request.turns[1])


def test_thinking_is_hidden_only_from_those_who_disable_it_and_then_still_matches() -> None:
    reply = reply_of(
        Turn(role="assistant", text="yes", reasoning="because", calls=(call("bash", command="ls"),))
    )
    kinds = {}
    for setting in (
        None,
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "adaptive"},
        {"type": "disabled"},
    ):
        incoming = ANTHROPIC.dialect.read({"messages": [user("hello")], "thinking": setting}, {})
        whole = ANTHROPIC.dialect.reply(incoming, reply)
        assert ANTHROPIC.fold(streamed(ANTHROPIC, incoming, reply))["content"] == whole["content"]
        kinds[str(setting and setting["type"])] = [block["type"] for block in whole["content"]]
        assert reply.turn.same(read(user("hello"), assistant(*whole["content"])).turns[1])
    shown = ["thinking", "text", "tool_use"]
    assert kinds == {"None": shown, "enabled": shown, "adaptive": shown, "disabled": shown[1:]}


def test_thinking_that_is_omitted_comes_as_its_signature_and_still_matches() -> None:
    reply = reply_of(Turn(role="assistant", text="yes", reasoning="because"), 12)
    omitted = {"type": "adaptive", "display": "omitted"}
    incoming = ANTHROPIC.dialect.read({"messages": [user("hello")], "thinking": omitted}, {})
    whole = ANTHROPIC.dialect.reply(incoming, reply)
    assert whole["content"][0]["thinking"] == "" and whole["content"][0]["signature"]
    assert ANTHROPIC.fold(streamed(ANTHROPIC, incoming, reply))["content"] == whole["content"]
    replayed = read(user("hello"), assistant(*whole["content"])).turns[1]
    assert reply.turn.same(replayed) and replayed.hint == 12


@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (reply_of(Turn(role="assistant", text="x")), ("end_turn", None)),
        (reply_of(Turn(role="assistant", text="x"), finish=Finish.LENGTH), ("max_tokens", None)),
        (reply_of(Turn(role="assistant", text="x"), stopped="END"), ("stop_sequence", "END")),
        (
            reply_of(Turn(role="assistant", text="x", reasoning=None, calls=(call("bash", command="ls"),))),
            ("tool_use", None),
        ),
    ],
)
def test_the_stop_reason_says_why_it_ended(reply: Any, stop: tuple[str, str | None]) -> None:
    whole = spoken(ANTHROPIC, reply)
    assert (whole["stop_reason"], whole["stop_sequence"]) == stop


def test_a_reply_that_says_nothing_has_one_empty_text_block() -> None:
    assert spoken(ANTHROPIC, reply_of(Turn(role="assistant", text="")))["content"] == [text("")]


def test_server_tools_remote_servers_and_what_they_left_are_stripped_and_counted() -> None:
    left = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    ]
    tools = [
        {"type": "custom", "name": "bash", "input_schema": COMMAND},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    servers = [{"type": "url", "url": "https://example.org", "name": "x"}]
    request = read(user("a"), assistant(*left, text("found")), user("b"), tools=tools, mcp_servers=servers)
    assert request.left_out == 5
    assert [tool["function"]["name"] for tool in request.tools] == ["bash"] and request.turns[
        1
    ].text == "found"


def test_a_system_message_inside_the_conversation_is_folded_into_user_text() -> None:
    turns = read(user("a"), {"role": "system", "content": [text("new rules")]}, system="Rules.").turns
    assert [turn.role for turn in turns] == ["system", "user", "user"]


@pytest.mark.parametrize(
    ("messages", "body", "words"),
    [
        ([user([{"type": "image", "source": {}}])], {}, r"messages\[0\] holds an image.*text only"),
        ([user([{"type": "document", "source": {}}])], {}, r"messages\[0\] holds a document"),
        ([user([{"type": "hologram"}])], {}, "unsupported type 'hologram'"),
        ([user(3)], {}, r"messages\[0\]: the content must be"),
        ([3], {}, r"messages\[0\] is not an object"),
        ([{"role": "wizard", "content": "x"}], {}, "unknown role 'wizard'"),
        ([assistant({"type": "tool_use", "id": "x", "input": {}})], {}, "has no function name"),
        ([user("a")], {"system": 3}, "system must be a string"),
        ([user("a")], {"max_tokens": 0}, "max_tokens must be a positive integer"),
        (
            [user("a")],
            {"tools": [{"name": "f", "input_schema": "{}"}]},
            r"tools\[0\]: the schema of tool 'f'",
        ),
        ([user("a")], {"tools": [{"input_schema": {}}]}, r"tools\[0\] has no name"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(messages: list[Any], body: Any, words: str) -> None:
    with pytest.raises(Problem, match=words) as problem:
        read(*messages, **body)
    assert problem.value.status == 400 and "\n" not in problem.value.message


def test_unknown_fields_are_tolerated() -> None:
    request = read(
        context_management={"edits": [{"type": "clear_thinking_20251015"}]},
        metadata={"user_id": "x"},
        output_config={"effort": "high"},
        tool_choice={"type": "none"},
        stop_sequences=["END"],
    )
    assert request.stop == ("END",) and request.rule.most == 0


@pytest.mark.parametrize(
    ("path", "headers", "form"),
    [
        ("/v1/messages/batches", {}, "anthropic"),
        ("/s/x/v1/messages/nowhere", {}, "anthropic"),
        ("/v1/files", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("/v1/embeddings", {}, "openai"),
        ("/s/x/v1/responses/resp_1", {}, "openai"),
    ],
)
def test_an_unknown_route_is_refused_in_the_form_of_its_wire(path: str, headers: Any, form: str) -> None:
    body = error_for(path, headers, bad_request("no"))
    assert (body.get("type") == "error") == (form == "anthropic") and body["error"]["message"] == "no"
