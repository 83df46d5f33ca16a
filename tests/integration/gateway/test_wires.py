"""The three wires against the real gateway, by their official packages and by recorded requests of real programs."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.integration.gateway.rig import Rig
from tests.integration.gateway.wires_rig import ask, claude, gpt, user

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

GOLDEN = Path(__file__).parents[2] / "wire/golden/harness"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": SCHEMA}}
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": "bash", "description": "Run.", "parameters": SCHEMA, "strict": False}
]
ANTHROPIC_TOOLS: Any = [{"name": "bash", "description": "Run.", "input_schema": SCHEMA}]
ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def bash(command: str) -> dict[str, Any]:
    return {"name": "bash", "arguments": {"command": command}}


DEMONSTRATION: list[dict[str, Any]] = [
    {
        "reasoning": "look at both",
        "content": "so:",
        "tool_calls": [bash("wc -l oak.txt"), bash('echo "ä\nb"')],
    },
    {"reasoning": "I know it", "content": None, "copy_observation": True},
]


async def anthropic_reply(
    client: anthropic.AsyncAnthropic, stream: bool, **body: Any
) -> anthropic.types.Message:
    request: dict[str, Any] = {"model": "policy", "max_tokens": 99, "tools": ANTHROPIC_TOOLS, **body}
    if not stream:
        whole: anthropic.types.Message = await client.messages.create(**request)
        return whole
    async with client.messages.stream(**request) as events:
        return await events.get_final_message()


@ways
async def test_the_anthropic_package_reads_thinking_parallel_tools_and_usage(rig: Rig, stream: bool) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(scripted=DEMONSTRATION)
    history: list[Any] = [user("how many lines has oak.txt?")]
    async with claude(session) as client:
        counted = await client.messages.count_tokens(
            model="policy", messages=history, system="Rules.", tools=ANTHROPIC_TOOLS
        )
        first = await anthropic_reply(client, stream, messages=history, system="Rules.")
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
        uses = [block for block in first.content if block.type == "tool_use"]
        assert [use.input for use in uses] == [{"command": "wc -l oak.txt"}, {"command": 'echo "ä\nb"'}]
        assert (first.stop_reason, first.usage.input_tokens) == ("tool_use", counted.input_tokens)
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": text}
            for use, text in zip(uses, ("7 oak.txt", "ä\nb"), strict=True)
        ]
        history += [first.to_param(), user(results[::-1])]  # a program may finish them in any order
        final = await anthropic_reply(
            client, stream, messages=history, system=[{"type": "text", "text": "Rules."}]
        )
        assert [getattr(block, "text", None) for block in final.content] == [None, "ä\nb"]
        assert final.stop_reason == "end_turn"
        more: list[Any] = [*history, final.to_param(), user("?")]
        beta = client.beta.messages.create(model="policy", max_tokens=9, messages=more)
        # With ?beta=true, and spelled in its dialect.
        with pytest.raises(anthropic.BadRequestError, match="budget of 2"):
            await beta
    seal = await rig.seal(rollout)
    assert (seal.steps, seal.marks) == (2, ())
    one, two = await rig.stored(rollout, 2)
    assert one.state_len == counted.input_tokens
    assert two.kind.value == "continues" and two.keep_len == len(one.full)


async def responses_reply(client: openai.AsyncOpenAI, stream: bool, **body: Any) -> Any:
    request: dict[str, Any] = {"model": "policy", "tools": RESPONSES_TOOLS, "store": False, **body}
    if not stream:
        return await client.responses.create(**request)
    async with client.responses.stream(**request) as events:
        names = [event.type async for event in events]
        assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
        return await events.get_final_response()


@ways
async def test_the_openai_package_reads_responses_with_reasoning_and_parallel_tools(
    rig: Rig, stream: bool
) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(scripted=DEMONSTRATION)
    history: list[Any] = [user("how many lines has oak.txt?")]
    async with gpt(session) as client:
        counted = await client.responses.input_tokens.count(
            model="policy", input=history, instructions="Rules.", tools=RESPONSES_TOOLS
        )
        first = await responses_reply(client, stream, input=history, instructions="Rules.")
        assert [item.type for item in first.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert first.output_text == "so:" and first.usage.input_tokens == counted.input_tokens
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(item.arguments)["command"] for item in calls] == ["wc -l oak.txt", 'echo "ä\nb"']
        history += [
            item.model_dump(
                exclude_none=True,
                exclude={"content", "parsed_arguments"} if item.type == "reasoning" else {"parsed_arguments"},
            )
            for item in first.output
        ]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": text}
            for item, text in zip(calls, ("7 oak.txt", "ä\nb"), strict=True)
        ]
        final = await responses_reply(client, stream, input=history, instructions="Rules.")
        assert (final.output_text, final.status) == ("ä\nb", "completed")
        with pytest.raises(openai.BadRequestError, match="resp_unknown"):
            await client.responses.create(model="policy", input="more", previous_response_id="resp_unknown")
    assert (await rig.seal(rollout)).marks == ()
    one, two = await rig.stored(rollout, 2)
    assert two.kind.value == "continues" and two.keep_len == len(one.full)


async def test_one_conversation_goes_on_from_wire_to_wire_without_drift(rig: Rig) -> None:
    """A sampled policy: the ids that the rollout server saw are the fold of the steps, for every wire that replayed the history."""
    rig.start_ingest()
    rollout, session = await rig.open()
    async with claude(session) as anthropic_client, gpt(session) as openai_client:
        for stream in (False, True):
            start = f"count the lines of oak.txt {stream}"
            one = await anthropic_reply(anthropic_client, stream, messages=[user(start)])
            thoughts = "".join(block.thinking for block in one.content if block.type == "thinking")
            text = "".join(block.text for block in one.content if block.type == "text")
            two = await chat_reply(
                openai_client,
                stream,
                [
                    user(start),
                    {"role": "assistant", "content": text, "reasoning_content": thoughts},
                    user("go on"),
                ],
            )
            items = [user(start), {"role": "assistant", "content": text}, user("go on")]
            items += [{"role": "assistant", "content": two}, user("and on")]
            three: Any = openai_client.responses.create(
                model="policy", input=items, tools=RESPONSES_TOOLS, stream=stream
            )
            if stream:
                last = [event async for event in await three][-1]
                assert last.type in ("response.completed", "response.incomplete")
            else:
                assert (await three).usage.output_tokens > 0
    seal = await rig.seal(rollout)
    steps = await rig.stored(rollout, 6)
    assert [step.kind.value for step in steps] == ["root", "continues", "continues"] * 2
    assert rig.proxy.sent == [(step.full[: step.state_len].tolist(), step.action.tolist()) for step in steps]
    assert seal.marks == ()


async def chat_reply(client: openai.AsyncOpenAI, stream: bool, messages: list[Any]) -> str:
    request: dict[str, Any] = {"model": "policy", "messages": messages, "tools": CHAT_TOOLS}
    if not stream:
        return (await client.chat.completions.create(**request)).choices[0].message.content or ""
    chunks = [chunk async for chunk in await client.chat.completions.create(**request, stream=True)]
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_text_that_javascript_cut_in_the_middle_of_a_character_is_read(rig: Rig) -> None:
    rig.start_ingest()
    rollout, session = await rig.open()
    status, answer, _ = await ask(
        rig,
        f"{session.path}/messages",
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": "cut \\ud83d"}]}',
    )
    assert status == 200, answer
    await rig.stored(rollout, 1)
    (row,) = await rig.rows("SELECT appended -> -1 ->> 'content' AS content FROM messages")
    assert row.content == "cut ?", "what no database can hold is replaced, the rest stays"


def restored(tools: Any, wire: str) -> Any:
    """Tools of a trimmed recording, with their schemas restored."""
    found = []
    for tool in tools:
        if not isinstance(tool, dict):  # "...10"
            continue
        described = {
            "name": tool.get("name") or tool["function.name"],
            "description": "x" * tool["description_chars"],
        }
        if tool.get("type") == "namespace":
            found.append({"type": "namespace", **described, "tools": restored(tool["tools"], wire)})
            continue
        schema = {"type": "object", "properties": {name: {} for name in tool["param_names"]}, "required": []}
        kind = {"type": tool["type"]} if "type" in tool else {}
        if wire == "anthropic":
            found.append({**kind, **described, "input_schema": schema})
        elif "function.name" in tool:
            found.append({**kind, "function": {**described, "parameters": schema}})
        else:
            found.append({**kind, **described, "strict": tool["strict"], "parameters": schema})
    return found


OPENCODE = {"name": "bash", "arguments": {"description": "print", "command": "echo hi-from-fake"}}


TOOL_AND_END = [{"content": None, "tool_calls": [bash("echo hi-from-fake")]}, {"content": "done"}]
CODEX = [
    {
        "reasoning": "think about it",
        "content": "I will look.",
        "tool_calls": [
            {"name": "exec_command", "arguments": {"cmd": "echo hi-from-codex"}},
            {"name": "exec_command", "arguments": {"cmd": "sleep 0.3; echo second"}},
        ],
    },
    {"reasoning": "third", "content": None, "tool_calls": [{"name": "get_goal", "arguments": {}}]},
    {"content": "all done"},
]
TITLE_TOOL_AND_END = [
    {"content": "A title"},
    {"reasoning": "print", "content": None, "tool_calls": [OPENCODE]},
    {"content": "done"},
]


@pytest.mark.parametrize(
    ("name", "script", "kinds"),
    [
        ("aider", [{"content": "ok"}], ["root"]),
        ("codex", CODEX, ["root", "continues", "continues"]),
        ("mini", TOOL_AND_END, ["root", "continues"]),
        ("mini_anthropic", TOOL_AND_END, ["root", "continues"]),
        ("opencode_openai-compatible", TITLE_TOOL_AND_END, ["root", "root", "continues"]),
        ("opencode_openai", TITLE_TOOL_AND_END, ["root", "root", "continues"]),
        ("opencode_anthropic", TITLE_TOOL_AND_END, ["root", "root", "continues"]),
    ],
)
async def test_recorded_requests_of_real_programs_are_answered_and_continue_their_steps(
    rig: Rig, name: str, script: Any, kinds: list[str]
) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(scripted=script)
    for exchange in json.loads((GOLDEN / f"{name}.json").read_text()):
        body, path = exchange["body_trimmed"], exchange["path"].rpartition("/v1/")[2]
        for key in ("messages", "input"):
            if key in body:
                body[key] = [item for item in body[key] if isinstance(item, dict)]
        if "tools" in body:
            body["tools"] = restored(body["tools"], "anthropic" if path == "messages" else "openai")
        kept = ("User-Agent", "anthropic-version", "x-session-id", "x-stainless-retry-count", "Accept")
        headers = {key: value for key, value in exchange["headers"].items() if key in kept}
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                f"{session.base_url}/{path}", json=body, headers={**headers, "x-api-key": session.token}
            ) as answer,
        ):
            text = await answer.text()
            assert answer.status == 200, text
            assert answer.content_type == ("text/event-stream" if body.get("stream") else "application/json")
    seal = await rig.seal(rollout)
    assert seal.marks == () and [step.kind.value for step in await rig.stored(rollout, seal.steps)] == kinds
