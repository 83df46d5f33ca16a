"""Blocks of the Messages wire that add and remove tools in the middle of a conversation."""

from typing import Any

import pytest

from orchestrator.gateway.http.dialects.base import Known
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import ANTHROPIC, COMMAND

BASH: dict[str, Any] = {"name": "bash", "input_schema": COMMAND}
LATE: dict[str, Any] = {"name": "late", "input_schema": COMMAND}
OTHER: dict[str, Any] = {**LATE, "description": "Another one."}


def named(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "name": name}


def added(tool: Any) -> dict[str, Any]:
    if isinstance(tool, dict) and "type" not in tool:
        tool = {"type": "tool_definition", "definition": tool}
    return {"type": "tool_addition", "tool": tool}


def removed(tool: Any) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": tool}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "go"}, *blocks]}


def read(*messages: Any, past: bool = False, **more: Any) -> Any:
    body = {"max_tokens": 9, "messages": list(messages), "tools": [BASH], **more}
    return ANTHROPIC.dialect.read(body, {}, Known(past=past)).request


def names(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.tools]


MCP = {"type": "mcp_toolset", "mcp_server_name": "files"}
# (blocks in their order, the tools at the end, how many count as left out)
CHANGES: list[tuple[list[dict[str, Any]], list[str], int]] = [
    ([added(LATE)], ["bash", "late"], 0),
    ([added({"type": "tool_definition", "definition": LATE}), added(LATE)], ["bash", "late"], 0),
    ([added(LATE), removed(named("late"))], ["bash"], 0),
    ([added(LATE), removed(named("late")), added(named("late"))], ["bash", "late"], 0),
    ([added(LATE), removed(named("late")), added(OTHER)], ["bash", "late"], 0),
    ([removed(named("bash"))], [], 0),
    ([removed(named("bash")), added(BASH)], ["bash"], 0),
    ([removed(named("bash")), added(named("bash"))], ["bash"], 0),
    ([added(BASH)], ["bash"], 0),
    ([added(named("bash"))], ["bash"], 0),
    ([added(named("nowhere")), removed(named("nowhere"))], ["bash"], 0),
    ([removed({"type": "mcp_tool_reference", "server_name": "files", "name": "bash"})], ["bash"], 0),
    ([added({"type": "mcp_toolset_reference", "server_name": "files"})], ["bash"], 0),
    ([added({"type": "tool_definition", "definition": MCP})], ["bash"], 1),
    ([added({"type": "tool_definition", "definition": {"type": "memory_20250818", "name": "memory"}})], ["bash", "memory"], 0),
]  # fmt: skip


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(("blocks", "tools", "left_out"), CHANGES)
def test_the_policy_is_shown_the_tools_that_are_left_by_all_additions_and_removals(
    blocks: list[dict[str, Any]], tools: list[str], left_out: int, past: bool
) -> None:
    inside = read(user(*blocks), past=past)
    assert (names(inside), inside.left_out) == (tools, left_out)
    assert [turn.text for turn in inside.turns] == ["go"], "no note replaces such a block"
    spoken = {"role": "assistant", "content": "so"}
    apart = read(user(), spoken, {"role": "system", "content": blocks}, user(), past=past)
    assert (names(apart), apart.left_out) == (tools, left_out)
    assert [turn.text for turn in apart.turns] == ["go", "so", "go"]


def test_the_latest_definition_after_a_removal_counts() -> None:
    request = read(user(added(LATE), removed(named("late")), added(OTHER)))
    assert request.tools[-1]["function"]["description"] == "Another one."


def test_a_choice_may_name_an_added_tool_and_no_removed_one() -> None:
    choice = {"type": "tool", "name": "late"}
    assert read(user(added(LATE)), tool_choice=choice).rule.names == ("late",)
    with pytest.raises(Problem, match="tool_choice names 'late', which no tool of this request is called"):
        read(user(added(LATE), removed(named("late"))), tool_choice=choice)


def test_no_call_may_be_made_once_every_tool_is_removed() -> None:
    """A request that never had tools takes a call of any name as it is."""
    assert read(user(removed(named("bash")))).rule.most == 0
    assert read(user(removed(named("bash")), added(LATE))).rule.most is None
    assert read(user(removed(named("late"))), tools=[]).rule.most is None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (added(None), r"^messages\[0\] has a tool_addition without a tool: send a tool_reference with its name$"),
        (removed("late"), r"^messages\[0\] has a tool_removal without a tool"),
        (removed({"type": "tool_reference"}), r"^messages\[0\] has a tool_removal of a tool without a name: send its name$"),
        (removed({"type": "hologram"}), r"^messages\[0\] has a tool_removal of the unknown type 'hologram'"),
        (removed({"type": "tool_definition", "definition": LATE}), "tool_removal of the unknown type 'tool_definition'"),
        (added({"type": "tool_definition"}), r"^messages\[0\]\.tool_addition\.tool\.definition must be an object"),
        (added({"name": "f"}), r"^messages\[0\]\.tool_addition\.tool\.definition has no input_schema"),
        (added({**BASH, "description": "Another one."}), "two different tools are called 'bash': rename one"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_read_is_refused_in_an_opening_and_counted_in_a_history(
    block: dict[str, Any], words: str
) -> None:
    with pytest.raises(Problem, match=words) as problem:
        read(user(block))
    assert problem.value.status == 400
    spoken = {"role": "assistant", "content": "so"}
    for later in (read(user(block), past=True), read(user(), spoken, user(block))):
        assert (names(later), later.left_out) == (["bash"], 1)


def test_messages_that_only_change_the_tools_are_refused() -> None:
    with pytest.raises(
        Problem, match=r"^messages only change the tools: send a message of the user as well$"
    ):
        read({"role": "user", "content": [added(LATE)]})
