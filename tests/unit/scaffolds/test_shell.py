"""The shell's loop, with a scripted policy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from scaffolds.base import AgentLimits, Context, Llm, Message, PolicyFault, TaskView
from scaffolds.shell import BASH, Shell

from sandboxes.base import ExecResult, KilledBy, Sandbox

pytestmark = pytest.mark.anyio

TASK = TaskView("t", "general", "Count the files.")


@dataclass
class Call:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class Reply:
    content: str = ""
    tool_calls: Sequence[Call] = ()
    finish: str = "stop"
    parse: str = "ok"
    reasoning: str | None = "so"
    step: int = 0

    def message(self) -> Message:
        return {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}


@dataclass
class Scripted:
    """Llm, Context and Sandbox in one: plays replies, and every command prints its own length."""

    replies: list[Reply]
    turns: int = 4
    asked: list[list[Message]] = field(default_factory=list)
    timed: list[tuple[int, str, int | None]] = field(default_factory=list)

    @property
    def limits(self) -> AgentLimits:
        return AgentLimits(self.turns, 1000, 1.0, 1.0)

    async def complete(self, messages: Sequence[Message], tools: Sequence[Any] = (), **_: Any) -> Reply:
        assert list(tools) == [BASH]
        self.asked.append(list(messages))
        return self.replies.pop(0)

    async def exec(self, argv: Sequence[str], *, timeout_s: float) -> ExecResult:
        assert argv[:2] == ["bash", "-c"] and timeout_s == 1.0
        return ExecResult(0, str(len(argv[2])).encode(), b"", False, KilledBy.NONE, 0.0, 0.0)

    @contextmanager
    def tool_call(self, reply: Reply, call: int, name: str) -> Iterator["Scripted"]:
        self.timed.append((call, name, None))
        yield self

    def ended(self, exit_code: int, output_bytes: int) -> None:
        self.timed[-1] = (*self.timed[-1][:2], exit_code)


async def run(scripted: Scripted) -> str:
    return await Shell().run(TASK, cast(Llm, scripted), cast(Sandbox, scripted), cast(Context, scripted))


def calls(*commands: str) -> Reply:
    return Reply(
        tool_calls=[Call(f"c{i}", "bash", {"command": c}) for i, c in enumerate(commands)],
        finish="tool_calls",
    )


async def test_the_history_only_grows_and_keeps_reasoning_and_every_observation() -> None:
    scripted = Scripted([calls("ls", "ls -l"), Reply("2")])
    assert await run(scripted) == "2"
    first, second = scripted.asked
    assert first == [{"role": "user", "content": "Count the files."}]
    assert second == [
        *first,
        {"role": "assistant", "content": "", "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "c0", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert scripted.timed == [(0, "bash", 0), (1, "bash", 0)]


async def test_the_budget_of_turns_ends_the_episode_after_the_last_commands_have_run() -> None:
    scripted = Scripted([calls("a"), calls("b"), Reply("never asked for")], turns=2)
    with pytest.raises(PolicyFault, match=r"^turns$"):
        await run(scripted)
    assert len(scripted.timed) == 2 and len(scripted.asked) == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("<tool_call>", parse="ill_formed"), "ill_formed"),
        (Reply("I thi", finish="length"), "length"),
        (Reply(tool_calls=[Call("c", "fly", {})]), "ill_formed"),
        (Reply(tool_calls=[Call("c", "bash", {"command": 3})]), "ill_formed"),
        (Reply(tool_calls=[Call("c0", "bash", {"command": "ls"}), Call("c1", "bash", {})]), "ill_formed"),
    ],
    ids=["unparsable", "cut off", "unknown tool", "not text", "second call without command"],
)
async def test_what_cannot_be_run_ends_the_episode_before_anything_runs(reply: Reply, reason: str) -> None:
    scripted = Scripted([reply])
    with pytest.raises(PolicyFault, match=f"^{reason}"):
        await run(scripted)
    assert scripted.timed == []
