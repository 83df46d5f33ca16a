"""The processes that an agent leaves work in no time that is not the agent's: hooks count, and before its files are read they are ended."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from orchestrator.contracts.hosts import HostList
from orchestrator.contracts.ids import unb64
from orchestrator.contracts.network import Access
from orchestrator.contracts.states import FailureClass
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.collect import artifacts_of
from orchestrator.runner.delegated_sandbox import DelegatedSandbox
from orchestrator.runner.egress.sandbox import Listener
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.outcome import AttemptOutcome
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifacts import limits_of
from orchestrator.tasks.collected import ArtifactSource, CollectHook
from orchestrator.tasks.message import Part
from sandboxes.base import ExecResult, Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

LEAVES = "mkdir -p /tmp/out; echo 1 > /tmp/out/x; sleep {} > /dev/null 2>&1 &"
PROCESSES = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"


async def kept(parts: Mapping[str, Part]) -> None:
    assert not parts


class Watched(DelegatedSandbox):
    """Notes the processes that live when the files of a source are listed."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        self.lived: list[bytes] = []

    async def exec(self, argv: Sequence[str], **options: Any) -> ExecResult:
        if argv[-1] == "/tmp/out":
            self.lived.append((await super().exec(["bash", "-c", PROCESSES])).stdout)
        return await super().exec(argv, **options)


@pytest.mark.parametrize("hooks", [(), (f"{PROCESSES} > /tmp/out/seen; sleep 0.2", LEAVES.format(544))])
async def test_what_an_agent_left_running_has_ended_before_its_files_are_read_and_the_time_of_hooks_counts(
    hooks: tuple[str, ...],
) -> None:
    done = AttemptOutcome(failure=FailureClass.COMPLETED, answer="7", reachable=True)
    clocks = Clocks(timeout_s=60.0, stall_s=None, completion_s=60.0)
    async with BubblewrapProvider().open(SandboxSpec()) as opened:
        sandbox = Watched(opened)
        ran = await clocks.run(partial(sandbox.exec, ["bash", "-c", LEAVES.format(543)]))
        before_s = clocks.own_s
        outcome, left = await artifacts_of(
            sandbox,
            done,
            "token",
            limits_of(SandboxSection()),
            kept,
            hooks=[CollectHook(command=command) for command in hooks],
            sources=[ArtifactSource(source="/tmp/out")],
            clocks=clocks,
        )
    assert ran.ok and outcome == done
    found = {file.path: unb64(file.body or "") for file in left}
    assert found["/tmp/out/x"] == b"1\n" and len(sandbox.lived) == 1
    assert b"sleep" not in sandbox.lived[0]
    if hooks:
        assert b"sleep 543" in found["/tmp/out/seen"], (
            "a service that a health check started is such a process"
        )
        assert clocks.own_s >= before_s + 0.2
    else:
        assert clocks.own_s == before_s


async def test_the_way_to_the_network_is_opened_again_for_a_next_step_and_not_to_read_what_this_one_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Listener] = []
    begin = Listener.begin

    async def counted(self: Listener, sandbox: Sandbox) -> None:
        opened.append(self)
        await begin(self, sandbox)

    monkeypatch.setattr(Listener, "begin", counted)
    done = AttemptOutcome(failure=FailureClass.COMPLETED, answer="7", reachable=True)
    access = Access(HostList.of(("example.org",)), 1 << 20)
    async with open_sandbox(BubblewrapProvider(), SandboxSpec(), access) as sandbox:
        assert (await sandbox.exec(["bash", "-c", LEAVES.format(545)])).ok
        outcome, left = await artifacts_of(
            sandbox,
            done,
            "token",
            limits_of(SandboxSection()),
            kept,
            sources=[ArtifactSource(source="/tmp/out")],
        )
        assert outcome == done and [file.path for file in left] == ["/tmp/out/x"]
        assert len(opened) == 1, (
            "an image whose python3 the agent replaced, or a busy machine, costs nothing here"
        )
        assert (await sandbox.exec(["true"])).ok and len(opened) == 2
