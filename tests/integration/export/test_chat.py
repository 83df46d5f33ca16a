"""The public API's chat messages of an attempt with a sub-agent, a rewritten history and a second answer."""

import json
from contextlib import aclosing

import pytest

from orchestrator.api.trajectory import Trajectory, trajectory_of
from orchestrator.contracts.states import StepKind
from orchestrator.queries.attempt_filters import AttemptFilters, Bound
from orchestrator.queries.attempt_pages import each_attempt
from orchestrator.queries.scalars import clock_and_created
from tests.integration.export.rig import SHOWN, ExportedRun, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

SYSTEM = {"role": "system", "content": "be brief"}
LOOK = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "look",
    "tool_calls": [
        {
            "id": "call_s0_0",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
        }
    ],
}
ASK = {
    "role": "assistant",
    "content": "ask help",
    "tool_calls": [
        {"id": "call_s1_0", "type": "function", "function": {"name": "ask", "arguments": '{"who": "helper"}'}}
    ],
}
SHARED = [
    SYSTEM,
    {"role": "user", "content": "count the files"},
    LOOK,
    {"role": "tool", "content": "a b", "tool_call_id": "call_s0_0"},
    ASK,
]
TWO = [
    {"role": "tool", "content": "two", "tool_call_id": "call_s1_0"},
    {"role": "assistant", "content": "it is two <b>"},
]


async def first(run: ExportedRun) -> Trajectory:
    async with run.reader.connect() as connection:
        now, _ = await clock_and_created(connection, run.run.run_id)
    attempts = each_attempt(run.reader, run.run, AttemptFilters(), Bound(now), limit=1)
    async with aclosing(attempts) as found:
        return trajectory_of(await anext(found))


async def test_messages_are_the_first_conversation_to_its_end_and_each_step_has_its_own(
    exported_run: ExportedRun,
) -> None:
    found = await first(exported_run)
    assert found.messages == [*SHARED, *TWO]
    assert found.tools == SHOWN
    whole = [step.conversation for step in found.steps]
    assert whole[1] == SHARED and whole[3] == found.messages
    assert whole[2] == [{"role": "user", "content": "you help"}, {"role": "assistant", "content": "two"}]
    assert whole[4] == [
        SYSTEM,
        {"role": "user", "content": "summary: two files"},
        {"role": "assistant", "content": "2"},
    ]
    assert whole[5] == [
        *SHARED,
        {"role": "tool", "content": "2", "tool_call_id": "call_s1_0"},
        {"role": "assistant", "content": "another answer"},
    ]


async def test_a_step_has_what_its_request_added_and_its_reply_in_the_same_form(
    exported_run: ExportedRun,
) -> None:
    found = await first(exported_run)
    for step in found.steps:
        assert step.conversation[-1] == step.reply and step.reply["content"] == step.content
        assert step.conversation[-1 - len(step.messages) : -1] == step.messages
        if step.kind is not StepKind.CONTINUES:
            assert step.conversation == [*step.messages, step.reply]
    assert json.loads(found.steps[0].reply["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
