"""OpenAI Responses: the requests of Codex, the AI SDK and others, and the answers that they need."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseErrorEvent

from orchestrator.contracts.marks import BudgetKind, Finish
from orchestrator.gateway.http.dialects.base import Known
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import Problem, budget_exhausted, session_over, unavailable
from tests.unit.gateway.dialect_rig import (
    COMMAND,
    RESPONSES,
    call,
    decoded,
    fold_responses,
    reply_of,
    responses_body,
    spoken,
    streamed,
)

USER = {"role": "user", "content": "hello"}


def read(*items: Any, **body: Any) -> Any:
    return RESPONSES.dialect.read({"model": "m", "input": list(items) or "hello", **body}, {}).request


def called(call_id: str, command: str) -> dict[str, Any]:
    arguments = json.dumps({"command": command})
    return {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": arguments}


def output(call_id: str, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_created_and_in_progress_come_at_once_and_signs_of_life_are_events() -> None:
    """Clients that count events, not bytes, time out in spite of comments."""
    events = RESPONSES.dialect.events(RESPONSES.read(["hello"]))
    names = [name for name, _ in decoded([events.opening(), events.waiting(), events.waiting()])]
    assert names == ["response.created", *["response.in_progress"] * 3]


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (session_over("sealed"), "invalid_prompt"),
        (unavailable("no server"), "server_error"),
        (Problem(500, "internal_error", "we failed"), "server_error"),
    ],
)
def test_a_stream_ends_with_a_terminal_event_also_on_our_own_errors(problem: Problem, code: str) -> None:
    events = RESPONSES.dialect.events(RESPONSES.read(["hello"]))
    response = fold_responses([events.opening(), events.waiting(), *events.failed(problem)])
    assert response["status"] == "failed" and response["output"] == []
    assert (response["error"]["code"], response["error"]["message"]) == (code, problem.message)
    Response.model_validate(response)


def test_a_stream_that_meets_a_full_context_ends_as_openais_does() -> None:
    """By the code of response.failed Codex recognizes it. The official package does not list the code, and raises at the event before."""
    problem = budget_exhausted(BudgetKind.CONTEXT, 2048)
    events = RESPONSES.dialect.events(RESPONSES.read(["hello"]))
    (_, error), (_, failed) = decoded(events.failed(problem))
    ResponseErrorEvent.model_validate(error)
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    for found in (error, error["error"], failed["response"]["error"]):
        assert (found["code"], found["message"]) == ("context_length_exceeded", problem.message)


def test_a_reply_that_was_cut_off_is_incomplete_in_both_forms() -> None:
    reply = reply_of(Turn(role="assistant", text="half a"), finish=Finish.LENGTH)
    for response in (
        spoken(RESPONSES, reply),
        fold_responses(streamed(RESPONSES, RESPONSES.read(["hello"]), reply)),
    ):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_developer_items_and_instructions_lead_and_later_ones_are_folded_into_user_text() -> None:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]}
    assert [turn.role for turn in read(developer, USER).turns] == ["system", "user"]
    turns = read(developer, USER, instructions="You are Codex.").turns
    assert [(turn.role, turn.text) for turn in turns] == [
        ("system", "You are Codex."),
        ("user", "rules"),
        ("user", "hello"),
    ]


def test_provider_side_tools_and_what_they_left_in_the_history_are_stripped_and_counted() -> None:
    left = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "mcp_list_tools", "tools": []},
    ]
    tools = [
        {"type": "function", "name": "bash", "parameters": COMMAND},
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation"},
        {"type": "tool_search"},
        {"type": "mcp", "server_url": "https://example.org"},
    ]
    request = read(USER, *left, tools=tools, include=["reasoning.encrypted_content"], store=False)
    assert request.left_out == 6
    assert [tool["function"]["name"] for tool in request.tools] == ["bash"]
    assert [turn.text for turn in request.turns] == ["hello"]


def test_a_freeform_tool_takes_one_string_and_is_answered_as_a_custom_call() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tool = {"type": "custom", "name": "apply_patch", "description": "Patch files.", "format": grammar}
    (shown,) = read(tools=[tool]).tools
    assert shown["function"]["parameters"]["required"] == ["input"]
    assert (
        shown["function"]["description"].startswith("Patch files.")
        and "start: /.+/" in shown["function"]["description"]
    )
    (item,) = spoken(
        RESPONSES,
        reply_of(
            Turn(role="assistant", text="", reasoning=None, calls=(call("apply_patch", input="*** Begin"),)),
            3,
        ),
    )["output"]
    assert (item["type"], item["name"], item["input"], item["call_id"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin",
        "call_s3_0",
    )
    result = {"type": "custom_tool_call_output", "call_id": "call_s3_0", "output": "done"}
    _, assistant, observed = read(USER, item, result).turns
    assert assistant.calls == (call("apply_patch", input="*** Begin"),) and (
        observed.role,
        observed.text,
    ) == (
        "tool",
        "done",
    )


def test_a_freeform_call_with_other_arguments_is_served_as_it_was_made() -> None:
    (item,) = spoken(
        RESPONSES,
        reply_of(Turn(role="assistant", text="", reasoning=None, calls=(call("apply_patch", patch="x"),))),
    )["output"]
    assert (item["type"], item["arguments"]) == ("function_call", '{"patch":"x"}')


@pytest.mark.parametrize("namespace", ["mcp__files__", "mcp__files"])
def test_a_namespace_is_part_of_the_name_for_the_policy_and_a_field_for_the_program(namespace: str) -> None:
    inner = {"type": "function", "name": "read", "parameters": {"type": "object"}}
    body = {"input": "hello", "tools": [{"type": "namespace", "name": namespace, "tools": [inner]}]}
    incoming = RESPONSES.dialect.read(body, {})
    assert [tool["function"]["name"] for tool in incoming.request.tools] == ["mcp__files__read"]
    reply = reply_of(
        Turn(role="assistant", text="", reasoning=None, calls=(call("mcp__files__read", path="x"),))
    )
    (item,) = RESPONSES.dialect.reply(incoming, reply)["output"]
    assert (item["namespace"], item["name"]) == (namespace, "read")
    assert read(USER, item).turns[1].calls == reply.turn.calls


def test_two_tools_that_the_policy_could_not_tell_apart_are_refused() -> None:
    inner = {"type": "function", "name": "read"}
    with pytest.raises(Problem, match="two different tools are called 'files__read'"):
        read(
            tools=[
                {"type": "namespace", "name": "files", "tools": [inner]},
                {"type": "function", "name": "files__read"},
            ]
        )


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {}], ids=str)
def test_an_item_with_an_id_and_nothing_else_is_the_stored_one(kind: dict[str, Any]) -> None:
    made, message = (
        {"type": "function_call", "call_id": "call_s0_0", "name": "look", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    )
    known = Known(past=True, stored={"msg_s0": message, "fc_s0_0": made})
    items = [USER, {"id": "msg_s0", **kind}, {"id": "fc_s0_0", **kind}, output("call_s0_0", "an oak")]
    request = RESPONSES.dialect.read({"input": items}, {}, known).request
    assert [(turn.role, turn.text) for turn in request.turns[1:]] == [
        ("assistant", "I look."),
        ("tool", "an oak"),
    ]
    assert [call.name for call in request.turns[1].calls] == ["look"] and request.left_out == 0


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"format": SCHEMA}, r"^input\[1\]\.text\.format is not supported: .*ask for the form in the prompt"),
        ({"schema": {"type": "object"}}, r"^input\[1\]\.text\.schema is not supported"),
        ("json", r"^input\[1\]\.text must be an object"),
    ],
)
def test_an_update_that_wants_a_form_is_refused_until_the_session_has_a_step(text: Any, words: str) -> None:
    update = {"type": "configuration_update", "text": text}
    with pytest.raises(Problem, match=words):
        read(USER, update)
    request = RESPONSES.dialect.read({"input": [USER, update]}, {}, Known(past=True)).request
    assert request.left_out == 1 and len(request.turns) == 1


@pytest.mark.parametrize(
    "more", [{"reasoning": {"effort": "high"}}, {"text": {"format": {"type": "text"}}}, {"text": None}, {}]
)
def test_an_update_that_wants_no_form_has_no_effect(more: dict[str, Any]) -> None:
    request = read(USER, {"type": "configuration_update", **more})
    assert request.left_out == 1 and len(request.turns) == 1


def test_tools_that_come_as_an_item_are_tools() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    request = read(USER, item)
    assert [tool["function"]["name"] for tool in request.tools] == ["late"] and len(request.turns) == 1


def test_parallel_calls_are_one_message_also_when_each_is_replayed_with_its_result() -> None:
    one, two = called("call_s7_0", "ls"), called("call_s7_1", "pwd")
    apart = read(USER, one, output("call_s7_0", "a"), two, output("call_s7_1", "b")).turns
    together = read(USER, one, two, output("call_s7_1", "b"), output("call_s7_0", "a")).turns
    assert apart == together
    assert [len(turn.calls) for turn in together] == [0, 2, 0, 0] and together[1].hint == 7


def test_replies_of_two_steps_in_a_row_stay_two_messages() -> None:
    first = spoken(RESPONSES, reply_of(Turn(role="assistant", text="", reasoning="hm"), 0, Finish.LENGTH))[
        "output"
    ]
    second = spoken(RESPONSES, reply_of(Turn(role="assistant", text="yes"), 1))["output"]
    third = spoken(
        RESPONSES,
        reply_of(Turn(role="assistant", text="", reasoning="so", calls=(call("bash", command="ls"),)), 2),
    )["output"]
    turns = read(USER, *first, *second, *third, output("call_s2_0", "x")).turns
    assert [(turn.text, turn.reasoning, len(turn.calls)) for turn in turns[1:4]] == [
        ("", "hm", 0),
        ("yes", None, 0),
        ("", "so", 1),
    ]


def test_reasoning_of_another_provider_is_kept_as_far_as_it_is_readable() -> None:
    foreign = {
        "type": "reasoning",
        "id": "rs_68",
        "encrypted_content": "gAAAA",
        "summary": [{"type": "summary_text", "text": "why"}],
    }
    sealed = {"type": "reasoning", "encrypted_content": "penstock1.s3.???", "summary": []}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
    assert [read(USER, item, answer).turns[1].reasoning for item in (foreign, sealed)] == ["why", None]


@pytest.mark.parametrize(
    ("items", "body", "words"),
    [
        (
            [],
            {"previous_response_id": "resp_1"},
            "previous_response_id refers to 'resp_1'.*whole conversation",
        ),
        ([], {"conversation": "conv_1"}, "conversation is not supported"),
        ([], {"background": True}, "background is not supported: .*stream the reply instead"),
        ([{"type": "item_reference", "id": "rs_1"}], {}, r"input\[0\] refers to 'rs_1'.*not of this session"),
        ([{"id": "rs_1"}], {}, r"input\[0\] refers to 'rs_1'.*not of this session"),
        ([{"id": "rs_1", "type": None}], {}, r"input\[0\] refers to 'rs_1'.*not of this session"),
        (
            [USER, {"id": "rs_1", "content": "x"}],
            {},
            r"input\[1\] has no type: send messages, function calls",
        ),
        ([USER, {"id": 1}], {}, r"input\[1\] has no type"),
        (
            [USER, {"type": "message", "content": "x"}],
            {},
            r"input\[1\] has no role: use system, developer, user",
        ),
        ([USER, {"type": "telepathy"}], {}, r"input\[1\] is of the unknown type 'telepathy'"),
        ([USER, 3], {}, r"input\[1\] is not an object"),
        ([{"role": "wizard", "content": "x"}], {}, "unknown role 'wizard'"),
        ([{"type": "function_call", "call_id": "c"}], {}, r"input\[0\] is a tool call without a name"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            {},
            r"input\[0\] holds an image",
        ),
        (
            [USER],
            {"tools": [{"type": "function", "name": "f", "parameters": 3}]},
            r"tools\[0\]: the schema of tool 'f'",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(items: list[Any], body: Any, words: str) -> None:
    with pytest.raises(Problem, match=words) as problem:
        read(*items, **body)
    assert problem.value.status == 400 and "\n" not in problem.value.message


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(Problem, match="input must be a non-empty"):
        RESPONSES.dialect.read({"input": []}, {})


def test_unknown_fields_are_tolerated() -> None:
    body = {
        **responses_body(["hello"]),
        "prompt_cache_key": "x",
        "text": {"verbosity": "low"},
        "client_metadata": {},
    }
    assert RESPONSES.dialect.read(body, {}).request.turns == RESPONSES.read(["hello"]).request.turns


@pytest.mark.parametrize("instructions", [5, {}, [{"role": "system", "content": "rules"}], False])
def test_instructions_that_are_not_text_are_refused_and_not_left_out(instructions: Any) -> None:
    with pytest.raises(Problem, match="instructions must be a string") as problem:
        read(USER, instructions=instructions)
    assert problem.value.param == "instructions"
