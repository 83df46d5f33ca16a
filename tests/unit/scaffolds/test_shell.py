"""The shell's loop, with a scripted policy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from scaffolds.base import AgentLimits, Context, Llm, Message, PolicyFault, TaskView
from scaffolds.shell import BASH, Shell

from sandboxes.base import ExecResult, KilledBy, Sandbox, SandboxError

pytestmark = pytest.mark.anyio

TASK = TaskView(name="t", domain="general", instruction="Count the files.")


@dataclass
class Call:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(kw_only=True)
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
class Timer:
    exit_code: int | None = None

    def ended(self, exit_code: int, output_bytes: int) -> None:
        self.exit_code = exit_code


@dataclass(kw_only=True)
class Scripted:
    """Llm, Context and Sandbox in one: plays replies, and every command prints its own length."""

    replies: list[Reply]
    turns: int = 4
    requests: list[list[Message]] = field(default_factory=list)
    timed: list[tuple[int, str, int | None]] = field(default_factory=list)

    @property
    def limits(self) -> AgentLimits:
        return AgentLimits(turns=self.turns, context=1000, tool_timeout_s=1.0, timeout_s=1.0)

    async def complete(self, messages: Sequence[Message], tools: Sequence[Any] = (), **_: Any) -> Reply:
        assert list(tools) == [BASH]
        self.requests.append(list(messages))
        return self.replies.pop(0)

    async def exec(self, argv: Sequence[str], *, timeout_s: float) -> ExecResult:
        assert argv[:2] == ["bash", "-c"] and timeout_s == 1.0
        return ExecResult(
            exit_code=0,
            stdout=str(len(argv[2])).encode(),
            stderr=b"",
            truncated=False,
            killed_by=KilledBy.NONE,
            wall_s=0.0,
            cpu_s=0.0,
        )

    @contextmanager
    def tool_call(self, reply: Reply, call: int, name: str) -> Iterator["Timer"]:
        timer = Timer()
        yield timer
        self.timed.append((call, name, timer.exit_code))


async def run(scripted: Scripted) -> str:
    return await Shell().run(TASK, cast(Llm, scripted), cast(Sandbox, scripted), cast(Context, scripted))


def calls(*commands: str) -> Reply:
    return Reply(
        tool_calls=[Call(f"c{i}", "bash", {"command": c}) for i, c in enumerate(commands)],
        finish="tool_calls",
    )


async def test_the_history_only_grows_and_keeps_reasoning_and_every_observation() -> None:
    scripted = Scripted(replies=[calls("ls", "ls -l"), Reply(content="2")])
    assert await run(scripted) == "2"
    first, second = scripted.requests
    assert first == [{"role": "user", "content": "Count the files."}]
    assert second == [
        *first,
        {"role": "assistant", "content": "", "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "c0", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert scripted.timed == [(0, "bash", 0), (1, "bash", 0)]


async def test_the_budget_of_turns_ends_the_attempt_after_the_last_commands_have_run() -> None:
    scripted = Scripted(replies=[calls("a"), calls("b"), Reply(content="never requested")], turns=2)
    with pytest.raises(PolicyFault, match=r"^turns$"):
        await run(scripted)
    assert len(scripted.timed) == 2 and len(scripted.requests) == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(content="<tool_call>", parse="ill_formed"), "ill_formed"),
        (Reply(content="I thi", finish="length"), "length"),
        (Reply(tool_calls=[Call("c", "fly", {})]), "ill_formed"),
        (Reply(tool_calls=[Call("c", "bash", {"command": 3})]), "ill_formed"),
        (Reply(tool_calls=[Call("c0", "bash", {"command": "ls"}), Call("c1", "bash", {})]), "ill_formed"),
    ],
    ids=["unparsable", "cut off", "unknown tool", "not text", "second call without command"],
)
async def test_what_cannot_be_run_ends_the_attempt_before_anything_runs(reply: Reply, reason: str) -> None:
    scripted = Scripted(replies=[reply])
    with pytest.raises(PolicyFault, match=f"^{reason}"):
        await run(scripted)
    assert scripted.timed == []


@dataclass(kw_only=True)
class Meeting(Scripted):
    """A sandbox in which the first `expected` commands wait for each other; with `reverse` they end in reverse order."""

    expected: int = 3
    reverse: bool = False
    running: int = 0
    most: int = 0
    ended: list[str] = field(default_factory=list)
    all_here: anyio.Event = field(default_factory=anyio.Event)

    async def exec(self, argv: Sequence[str], *, timeout_s: float) -> ExecResult:
        command = argv[2]
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.expected:
            self.all_here.set()
        await self.all_here.wait()
        while self.reverse and self.expected - len(self.ended) - 1 != int(command):
            await anyio.lowlevel.checkpoint()
        self.running -= 1
        self.ended.append(command)
        return ExecResult(
            exit_code=0,
            stdout=f"seen {command}".encode(),
            stderr=b"",
            truncated=False,
            killed_by=KilledBy.NONE,
            wall_s=0.0,
            cpu_s=0.0,
        )


async def test_the_calls_of_one_reply_run_at_once_and_their_results_keep_the_order_of_the_calls() -> None:
    scripted = Meeting(replies=[calls("0", "1", "2"), Reply(content="done")], reverse=True)
    with anyio.fail_after(60):
        assert await run(scripted) == "done"
    assert scripted.ended == ["2", "1", "0"]
    assert [(m["tool_call_id"], m["content"]) for m in scripted.requests[1][2:]] == [
        ("c0", "seen 0"),
        ("c1", "seen 1"),
        ("c2", "seen 2"),
    ]


async def test_no_more_than_eight_calls_of_one_reply_run_at_the_same_time() -> None:
    scripted = Meeting(replies=[calls(*map(str, range(30))), Reply(content="done")], expected=8)
    with anyio.fail_after(60):
        assert await run(scripted) == "done"
    assert scripted.most == 8 and sorted(map(int, scripted.ended)) == list(range(30))


@dataclass(kw_only=True)
class Dying(Scripted):
    """A sandbox that dies with the second command, while the first one runs."""

    cancelled: list[str] = field(default_factory=list)
    first_runs: anyio.Event = field(default_factory=anyio.Event)

    async def exec(self, argv: Sequence[str], *, timeout_s: float) -> ExecResult:
        if argv[2] == "1":
            await self.first_runs.wait()
            raise SandboxError("it is gone")
        self.first_runs.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(argv[2])
            raise
        raise AssertionError


async def test_what_the_sandbox_raises_ends_the_other_calls_and_leaves_as_it_is() -> None:
    scripted = Dying(replies=[calls("0", "1")])
    with anyio.fail_after(60), pytest.raises(SandboxError, match="it is gone"):
        await run(scripted)
    assert scripted.cancelled == ["0"]
