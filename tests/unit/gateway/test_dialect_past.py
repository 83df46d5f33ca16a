"""Content of unknown types: no wire ever refuses a history for it; a conversation's opening is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.gateway.http.dialects.base import Known
from orchestrator.gateway.messages.content import flatten
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.messages.turns import Turn, read_messages
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, RESPONSES, Wire

TEXT = {"type": "text", "text": "an oak"}
# (a part, its remaining text, how many parts count as left out)
PARTS: list[tuple[dict[str, Any], str, int]] = [
    ({"type": "tool_reference", "tool_name": "fetch"}, "fetch", 0),
    ({"type": "search_result", "source": "notes/1", "title": "t", "content": [TEXT]}, "t\nnotes/1\nan oak", 0),
    ({"type": "search_result", "source": "notes/1", "content": [TEXT]}, "notes/1\nan oak", 0),
    ({"type": "search_result", "source": "notes/1", "title": "t", "content": []}, "t\nnotes/1", 0),
    ({"type": "hologram", "source": "data:AAAA", "content": [TEXT]}, "an oak", 0),
    ({"type": "image", "source": "https://example.org/oak.png"}, "[image left out: only text is read]", 1),
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "an oak"}}, "an oak", 0),
    ({"type": "document", "title": "t", "source": {"type": "content", "content": [TEXT]}}, "t\nan oak", 0),
    ({"type": "document", "title": "t", "context": "c", "source": {"type": "text", "data": "an oak"}}, "t\nc\nan oak", 0),
    ({"type": "document", "title": "t", "source": {"type": "base64", "data": "AAAA"}}, "t", 1),
    ({"type": "hologram", "text": "an oak", "depth": 3}, "an oak", 0),
    ({"type": "hologram", "content": "an oak"}, "an oak", 0),
    ({"type": "hologram", "content": [{"type": "inner", "content": [TEXT, "!"]}]}, "an oak!", 0),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "[input_audio left out: only text is read]", 1),
    ({"type": "audio", "transcript": "an oak", "data": "AAAA"}, "an oak", 0),
    ({"type": "image", "source": {"type": "base64", "data": "AAAA"}}, "[image left out: only text is read]", 1),
    ({"type": "image_url", "image_url": {"url": "data:"}}, "[image_url left out: only text is read]", 1),
    ({"type": "input_image", "image_url": "data:"}, "[input_image left out: only text is read]", 1),
    ({"type": "input_file", "file_id": "file_1"}, "[input_file left out: only text is read]", 1),
    ({"type": "container_upload", "file_id": "file_1"}, "[container_upload left out: only text is read]", 1),
    ({"type": "computer_screenshot", "image_url": "data:"}, "[computer_screenshot left out: only text is read]", 1),
    ({"type": "hologram", "depth": 3}, "[hologram left out: only text is read]", 1),
    ({"depth": 3}, "[unknown left out: only text is read]", 1),
    ({"type": 7}, "[unknown left out: only text is read]", 1),
    ({"type": "web_search_tool_result", "tool_use_id": "x", "content": [{"type": "web_search_result", "title": "t"}]}, "", 1),
    ({"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}, "", 1),
    ({"type": "mcp_tool_use", "id": "x", "name": "look", "input": {}}, "", 1),
    ({"type": "redacted_thinking", "data": "AAAA"}, "", 1),
    ({"type": "refusal", "refusal": "no"}, "no", 0),
]  # fmt: skip
IDS = [f"{part.get('type')}-{at}" for at, (part, _, _) in enumerate(PARTS)]
ASSISTANT: dict[str, dict[str, Any]] = {
    "chat": {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]},
    "responses": {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    "anthropic": {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
}  # fmt: skip


def read(wire: Wire, *messages: Any, past: bool = False) -> CompletionRequest:
    body = {"input" if wire is RESPONSES else "messages": list(messages)}
    return wire.dialect.read(body, {}, Known(past=past)).request


def result(wire: Wire, part: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "chat": {"role": "tool", "tool_call_id": "c", "content": [part]},
        "responses": {"type": "function_call_output", "call_id": "c", "output": [part]},
        "anthropic": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [part]}],
        },
    }[wire.dialect.name]


def headed(part: Mapping[str, Any]) -> bool:
    source = part.get("source")
    return "title" in part or (
        isinstance(source, str) and "content" in part and not source.startswith("data:")
    )


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC], ids=lambda wire: wire.dialect.name)
@pytest.mark.parametrize(("part", "text", "left_out"), PARTS, ids=IDS)
def test_what_a_tool_or_a_later_message_holds_is_kept_as_text_or_left_out_and_counted(
    wire: Wire, part: dict[str, Any], text: str, left_out: int
) -> None:
    spoken = ASSISTANT[wire.dialect.name]
    request = read(wire, user("go"), spoken, result(wire, part))
    assert (request.turns[-1].role, request.turns[-1].text, request.left_out) == ("tool", text, left_out)
    kinds = (part["type"],) if isinstance(part.get("type"), str) else ("unknown",)
    assert request.turns[-1].left_out == kinds * left_out, "the record says what is missing"
    assert Turn.from_plain(request.turns[-1].plain()) == request.turns[-1]
    later = read(wire, user("go"), spoken, result(wire, part), user([part]), user("on"))
    assert [turn.text for turn in later.turns[2:]] == [text, text, "on"]
    first = read(wire, user([part]), past=True)
    assert first.turns[0].text == text, "a session with a step has a history, wherever its program begins"


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC], ids=lambda wire: wire.dialect.name)
@pytest.mark.parametrize(("part", "text", "left_out"), PARTS, ids=IDS)
def test_a_reply_put_into_the_assistants_mouth_is_never_refused_and_gets_no_note(
    wire: Wire, part: dict[str, Any], text: str, left_out: int
) -> None:
    spoken = {"role": "assistant", "content": [{"type": "text", "text": "so "}, part]}
    request = read(wire, user("go"), spoken, user("on"))
    shown = "" if text.startswith("[") else text
    between = "\n" if headed(part) else ""
    assert request.turns[1].text == f"so {between}{shown}" and request.left_out == left_out


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC], ids=lambda wire: wire.dialect.name)
@pytest.mark.parametrize(("part", "text", "left_out"), PARTS, ids=IDS)
def test_a_question_that_cannot_be_read_is_refused_by_its_type(
    wire: Wire, part: dict[str, Any], text: str, left_out: int
) -> None:
    if left_out and text:
        named = str(part["type"]) if "type" in part else "without a type"
        with pytest.raises(Problem, match=f"{named}.*send text") as problem:
            read(wire, user([{"type": "text", "text": "see "}, part]))
        assert problem.value.status == 400
    else:
        assert read(wire, user([part])).turns[0].text == text


@pytest.mark.parametrize("content", [{"a": [1]}, 3, True, [3, None]])
def test_a_tools_result_of_another_shape_is_never_refused(content: Any) -> None:
    call = ASSISTANT["chat"]
    turns, left_out = read_messages(
        [user("go"), call, {"role": "tool", "tool_call_id": "c", "content": content}]
    )
    assert turns[-1].role == "tool" and left_out >= 1
    with pytest.raises(Problem, match=r"must be a string|without a type"):
        flatten(content)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "computer_call_output", "call_id": "k", "output": {"type": "computer_screenshot"}},
        {"type": "shell_call", "call_id": "k", "action": {}},
        {"type": "shell_call_output", "call_id": "k", "output": []},
        {"type": "apply_patch_call", "call_id": "k", "operation": {}},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "program_output", "id": "p"},
        {"type": "telepathy", "thought": "x"},
    ],
    ids=lambda item: str(item["type"]),
)
def test_an_item_of_any_type_is_left_out_and_counted_once_the_assistant_has_spoken(
    item: dict[str, Any],
) -> None:
    spoken = ASSISTANT["responses"]
    output = {"type": "function_call_output", "call_id": "c", "output": "2"}
    request = read(RESPONSES, user("go"), spoken, output, item, user("on"))
    assert request.left_out == 1 and [turn.text for turn in request.turns] == ["go", "", "2", "on"]


def test_an_item_with_the_output_of_a_known_call_is_its_result_whatever_its_type() -> None:
    item = {"type": "hologram_call_output", "call_id": "c", "output": [{"type": "hologram", "text": "two"}]}
    request = read(RESPONSES, user("go"), ASSISTANT["responses"], item)
    assert (request.turns[-1].role, request.turns[-1].text) == ("tool", "two")


def test_a_call_of_an_unknown_type_is_left_out_of_a_history_and_counted() -> None:
    strange = {"id": "k", "type": "hologram", "hologram": {"depth": 3}}
    known = ASSISTANT["chat"]["tool_calls"][0]
    spoken = {"role": "assistant", "content": None, "tool_calls": [strange, known]}
    results = [{"role": "tool", "tool_call_id": one, "content": one} for one in ("k", "c")]
    request = read(CHAT, user("go"), spoken, *results)
    assert [call.name for call in request.turns[1].calls] == ["look"] and request.left_out == 1
    assert request.turns[1].left_out == ("hologram",)
    assert [turn.text for turn in request.turns[2:]] == ["c", "k"]
    alone = read(CHAT, user("go"), {**spoken, "tool_calls": [strange]}, results[0], user("on"))
    assert [turn.text for turn in alone.turns] == ["go", "", "k", "on"] and alone.left_out == 1


DOCUMENT = {"type": "document", "title": "T", "source": {"type": "text", "data": "body."}}
FOUND = {
    "type": "search_result",
    "source": "https://s",
    "title": "T",
    "content": [{"type": "text", "text": "body."}],
}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([FOUND, "Which URL?"], "T\nhttps://s\nbody.\nWhich URL?"),
        (["See:", DOCUMENT, FOUND, "so"], "See:\nT\nbody.\nT\nhttps://s\nbody.\nso"),
        (["See:\n", DOCUMENT, "\nso", TEXT], "See:\nT\nbody.\nsoan oak"),
        ([{"type": "hologram", "content": ["a", DOCUMENT, "b"]}, "c"], "a\nT\nbody.\nb\nc"),
        ([{"type": "document", "source": {"type": "text", "data": "a"}}, "b", TEXT], "aban oak"),
    ],
)
def test_a_part_with_a_heading_shares_no_line_with_its_neighbours(parts: list[Any], text: str) -> None:
    assert flatten(parts) == (text, ())
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    for wire in (CHAT, RESPONSES, ANTHROPIC):
        assert read(wire, user(parts)).turns[0].text == text


@pytest.mark.parametrize(
    ("answer", "text", "left_out"),
    [
        ({"content": "So far.", "refusal": "I will not."}, "So far.\nI will not.", ()),
        ({"content": "I will not.", "refusal": "I will not."}, "I will not.", ()),
        ({"content": [{"type": "refusal", "refusal": "No."}], "refusal": "No."}, "No.", ()),
        ({"content": "So far.", "refusal": {"text": "No."}}, "So far.", ("refusal",)),
        ({"content": "So far.", "refusal": None}, "So far.", ()),
    ],
)
def test_a_refusal_next_to_an_answer_is_kept_or_counted(
    answer: dict[str, Any], text: str, left_out: tuple[str, ...]
) -> None:
    turn = read(CHAT, user("go"), {"role": "assistant", **answer}, user("on")).turns[1]
    assert (turn.text, turn.left_out) == (text, left_out)


def test_what_the_assistant_refused_is_its_text_and_what_it_spoke_is_counted() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}
    spoke = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    request = read(CHAT, user("go"), refused, user("and now?"), spoke, user("on"))
    assert [turn.text for turn in request.turns] == ["go", "I will not.", "and now?", "", "on"]
    assert request.left_out == 1 and request.turns[3].left_out == ("audio",)


CALL = {"type": "function_call", "call_id": "k"}
# wire, a message of a history, the text and the calls of its turn (None: no turn), what counts as left out
LATER: list[tuple[Wire, dict[str, Any], str | None, int]] = [
    (CHAT, {"role": "ipython", "content": "4"}, "ipython: 4", 1),
    (CHAT, {"role": "critic", "content": [TEXT]}, "critic: an oak", 1),
    (CHAT, {"role": None, "content": "4"}, "unknown: 4", 1),
    (CHAT, {"content": "4"}, "unknown: 4", 1),
    (CHAT, {"role": ["user"], "content": "4"}, "unknown: 4", 1),
    (CHAT, {"role": "assistant", "content": "so", "tool_calls": [{"id": "k", "function": {"name": ""}}]}, "so", 1),
    (CHAT, {"role": "assistant", "content": "so", "tool_calls": [{"id": "k", "function": {}}, 5]}, "so", 2),
    (CHAT, {"role": "assistant", "content": "so", "tool_calls": "x"}, "so", 1),
    (CHAT, {"role": "assistant", "content": "so", "tool_calls": {"id": "k"}}, "so", 1),
    (CHAT, {"role": "assistant", "content": "so", "function_call": {"name": "", "arguments": "{}"}}, "so", 1),
    (ANTHROPIC, {"role": "critic", "content": "4"}, "critic: 4", 1),
    (ANTHROPIC, {"role": "tool", "content": ["4", "2"]}, "tool: 42", 1),
    (ANTHROPIC, {"content": None}, "unknown: ", 1),
    (ANTHROPIC, {"role": "assistant", "content": None}, "", 0),
    (ANTHROPIC, {"role": "assistant", "content": ["so", TEXT]}, "soan oak", 0),
    (ANTHROPIC, {"role": "assistant", "content": ["so", {"type": "tool_use", "id": "k", "name": ""}]}, "so", 1),
    (ANTHROPIC, {"role": "user", "content": None}, "", 0),
    (ANTHROPIC, {"role": "user", "content": ["so", 5]}, "so[unknown left out: only text is read]", 1),
    (ANTHROPIC, {"role": "user", "content": TEXT}, "an oak", 0),
    (RESPONSES, {"type": None, "role": "user", "content": "4"}, "4", 0),
    (RESPONSES, {"type": None, "content": "4"}, None, 1),
    (RESPONSES, {"type": 7, "content": "4"}, None, 1),
    (RESPONSES, {"type": ["message"], "content": "4"}, None, 1),
    (RESPONSES, {"role": "tool", "content": "4"}, "tool: 4", 1),
    (RESPONSES, {"type": "message", "content": "4"}, "unknown: 4", 1),
    (RESPONSES, {**CALL, "name": "", "arguments": "{}"}, None, 1),
    (RESPONSES, {**CALL, "name": None}, None, 1),
    (RESPONSES, {"type": None, "call_id": "c", "output": "4"}, "4", 0),
    (RESPONSES, {"type": {}, "call_id": "c", "output": "4"}, "4", 0),
    (RESPONSES, {"call_id": "c", "output": "4"}, "4", 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wire", "message", "text", "left_out"), LATER, ids=[f"{case[0].dialect.name}-{at}" for at, case in enumerate(LATER)]
)  # fmt: skip
def test_a_message_of_an_unknown_shape_is_kept_or_counted_once_the_assistant_has_spoken(
    wire: Wire, message: dict[str, Any], text: str | None, left_out: int
) -> None:
    spoken = ASSISTANT[wire.dialect.name]
    request = read(wire, user("go"), spoken, message, user("on"))
    texts = ["go", "", *([] if text is None else [text]), "on"]
    assert [turn.text for turn in request.turns] == texts and request.left_out == left_out
    assert [call.name for turn in request.turns for call in turn.calls] == ["look"]
    if text is not None and left_out:
        assert len(request.turns[2].left_out) == left_out, "the record says what is missing"
    if message.get("role") != "assistant":
        first = read(wire, user("go"), message, user("on"), past=True)
        assert first.left_out >= left_out, "a session with a step has a history, wherever its program begins"


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        pytest.param(wire, message, id=f"{wire.dialect.name}-{at}")
        for at, (wire, message, _, left_out) in enumerate(LATER)
        if left_out and message.get("role") != "assistant"
    ],
)
def test_a_message_of_an_unknown_shape_is_refused_in_the_opening(wire: Wire, message: dict[str, Any]) -> None:
    with pytest.raises(Problem) as problem:
        read(wire, user("go"), message, user("on"))
    assert problem.value.status == 400 and "None" not in problem.value.message


def test_a_null_type_with_a_role_is_a_message_in_an_opening_too() -> None:
    assert [turn.text for turn in read(RESPONSES, {"type": None, **user("go")}).turns] == ["go"]
    assert [turn.text for turn in read(ANTHROPIC, user(["go", TEXT])).turns] == ["goan oak"]
