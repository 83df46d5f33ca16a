"""Parts of a history that change how it is read, on the real gateway: tools that come and go, settings, headings, odd messages."""

from typing import Any

import pytest

from tests.integration.gateway.rig import Rig
from tests.integration.gateway.wires_rig import ask, claude, message_of, user

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

LOOK: dict[str, Any] = {"content": "I look.", "tool_calls": [{"name": "look", "arguments": {}}]}


async def test_a_tool_that_a_message_adds_can_be_called_until_another_message_removes_it(rig: Rig) -> None:
    _, session = await rig.open(scripted=[LOOK, LOOK])
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}
    removed = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}}
    history: list[Any] = [user([{"type": "text", "text": "how many?"}, added])]
    async with claude(session) as client:
        first = await client.messages.create(model="m", max_tokens=99, messages=history)
        assert [block.type for block in first.content] == ["text", "tool_use"]
        use = first.content[-1]
        assert use.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "an oak"}
        history += [{"role": "assistant", "content": first.content}, user([result, removed])]
        second = await client.messages.create(model="m", max_tokens=99, messages=history)
        assert ([block.type for block in second.content], second.stop_reason) == (["text"], "end_turn")


async def test_an_update_that_wants_a_form_is_refused_before_the_first_step_and_left_out_after_it(
    rig: Rig,
) -> None:
    _, session = await rig.open(scripted=[{"content": "one"}, {"content": "two"}])
    url = session.path + "/responses"
    form = {"type": "json_schema", "name": "count", "schema": {"type": "object"}}
    update = {"type": "configuration_update", "text": {"format": form}}
    status, answer, _ = await ask(rig, url, {"input": [update, user("how many?")]})
    assert status == 400 and "input[0].text.format is not supported" in message_of("/responses", answer)
    for items in (
        [{"type": "configuration_update", "reasoning": {"effort": "low"}}, user("how many?")],
        [update, user("how many more?")],
    ):
        status, answer, _ = await ask(rig, url, {"input": items})
        assert status == 200, answer


async def test_headings_and_refusals_are_recorded_and_odd_calls_of_a_history_are_not_refused(
    rig: Rig,
) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(scripted=[{"content": "one"}, {"content": "two"}])
    found = {
        "type": "search_result",
        "source": "https://example.org/oaks",
        "title": "Oaks",
        "content": [{"type": "text", "text": "They are old."}],
    }
    question = user([found, {"type": "text", "text": "Which URL?"}])
    async with claude(session) as client:
        await client.messages.create(model="m", max_tokens=99, messages=[question])
    spoken = {"role": "assistant", "content": "So far.", "refusal": "No more.", "tool_calls": "odd"}
    body = {"messages": [user("how many?"), spoken, user("and now?")]}
    status, answer, _ = await ask(rig, session.path + "/chat/completions", body)
    assert status == 200, answer
    await rig.stored(rollout, 2)
    rows = await rig.rows("SELECT appended FROM messages ORDER BY idx")
    first, second = (row.appended for row in rows)
    assert first[0]["content"] == "Oaks\nhttps://example.org/oaks\nThey are old.\nWhich URL?"
    assert second[1]["content"] == "So far.\nNo more."
    assert second[1]["left_out"] == ["a call without a name"]
