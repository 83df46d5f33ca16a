"""Several tool calls in one reply of a white box, in a real sandbox: at the same time, and all ended by one clock."""

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from scaffolds.base import AgentLimits, TaskView
from scaffolds.find import find

from orchestrator.contracts.events import StepTimings, ToolCallTimed
from orchestrator.contracts.marks import ParseStatus, ReplyFinish
from orchestrator.contracts.states import FailureClass
from orchestrator.gateway_client import NativeLlm, ParsedToolCall, RecordedCompletion, TokenUsage
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.outcome import AttemptOutcome, captured
from orchestrator.runner.whitebox import run_white
from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.anyio, pytest.mark.tier("roles")]


class Scripted:
    """The gateway's native route: one reply with all `commands`, then a final answer."""

    def __init__(self, *commands: str) -> None:
        self.commands = commands
        self.seen: list[dict[str, Any]] = []

    async def complete(self, messages: Sequence[Any], tools: Sequence[Any], **_: Any) -> RecordedCompletion:
        self.seen = [dict(message) for message in messages[2:]]
        calls = () if len(messages) > 1 else self.commands
        made = tuple(ParsedToolCall(f"c{i}", "bash", {"command": command}) for i, command in enumerate(calls))
        return RecordedCompletion(
            content="done",
            reasoning=None,
            tool_calls=made,
            finish=ReplyFinish.STOP,
            parse=ParseStatus.OK,
            step=len(messages) - 1,
            usage=TokenUsage(1, 1),
            timings=StepTimings(),
        )


async def attempt(
    sandbox: Sandbox, policy: Scripted, timed: list[ToolCallTimed], *, timeout_s: float
) -> AttemptOutcome:
    clocks = Clocks(timeout_s=timeout_s, stall_s=60, completion_s=60)
    limits, view = (
        AgentLimits(turns=4, context=1000, tool_timeout_s=60, timeout_s=timeout_s),
        TaskView(name="t", domain="general", instruction="Work."),
    )
    native = cast(NativeLlm, policy)
    return await captured(
        lambda: run_white(
            find("shell"), view, sandbox, native=native, clocks=clocks, limits=limits, tool_calls=timed
        )
    )


async def test_commands_of_one_reply_meet_and_each_has_a_time_of_its_own() -> None:
    """The first two wait for each other, so in sequence they would never end; the second ends later than the first."""
    policy, timed = (
        Scripted(
            "touch a; until [ -e b ]; do sleep .05; done; echo first",
            "touch b; until [ -e a ]; do sleep .05; done; sleep .5; echo second",
            "echo third; exit 3",
        ),
        list[ToolCallTimed](),
    )
    async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
        outcome = await attempt(sandbox, policy, timed, timeout_s=60)
    assert outcome.failure is FailureClass.COMPLETED
    assert [(m["tool_call_id"], m["content"].split()[0]) for m in policy.seen] == [
        ("c0", "first"),
        ("c1", "second"),
        ("c2", "third"),
    ]
    assert [(call.call, call.exit) for call in timed] == [(0, 0), (1, 0), (2, 3)]
    assert timed[1].start < timed[0].end < timed[1].end, "they overlap, and each ends at its own time"


async def test_a_clock_that_ends_the_attempt_ends_every_command_of_the_reply() -> None:
    timed: list[ToolCallTimed] = []
    mark = f"mark-{secrets.token_hex(8)}"
    commands = [f"touch started{i}; sleep 300; : {mark}" for i in range(4)]
    async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
        with anyio.fail_after(60):
            outcome = await attempt(sandbox, Scripted(*commands), timed, timeout_s=5)
        assert not running(mark), "a command lives on"
        found = sorted((await sandbox.changed()).added)
    assert outcome.failure is FailureClass.TIMEOUT, outcome
    assert found == [f"started{i}" for i in range(4)], "all of them ran"
    assert [(call.call, call.exit) for call in timed] == [(i, None) for i in range(4)]


def running(mark: str) -> list[str]:
    """The processes of this machine whose command line has `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found
