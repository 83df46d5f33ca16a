"""Process signals of plug-ins run in another process: whatever they do costs the signal, not the group and not the orchestrator."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.choices import SignalSource, SignalSpan
from orchestrator.contracts.marks import MarkReason, ParseStatus
from orchestrator.contracts.states import FailureClass, Purpose, RolloutState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.groups import GroupMember, TerminalGroup
from orchestrator.pool.steps import StepReading
from orchestrator.rewards.actions import ToolResult
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.signals import function
from orchestrator.roles import reward_process
from orchestrator.roles.ingest import ingest_verdicts
from orchestrator.roles.reward import RewardedGroup, reward_group
from orchestrator.roles.reward_process import reward_group_apart
from orchestrator.settings.reward import ProcessSignal
from orchestrator.settings.timeouts import Timeouts, use
from tests.integration.pool.rig import Tree, counter, ended, record, report, running
from tests.integration.roles.rig import Stage, playing, staged, until
from tests.integration.roles.test_slow_rewards import is_group, judge

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

SIGNALS = """
import ctypes, os, re, sys

def half(step, before):
    return 0.5

def prints(step, before):
    print("x" * 100_000)
    sys.stdin.read()
    return 0.5

def crashes(step, before):
    ctypes.string_at(0)

def ends(step, before):
    os._exit(0)

def leaves(step, before):
    sys.exit(3)

def holds(step, before):
    re.match("(a+)+$", "a" * 64 + "b")

def raises(step, before):
    raise KeyError("step")
"""
NAMES = ("half", "prints", "crashes", "ends", "leaves", "holds", "raises")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with signals of a user's own."""
    (tmp_path / "own_signals.py").write_text(SIGNALS)
    described = tmp_path / "own_signals-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: own-signals\nVersion: 1\n")
    entries = "\n".join(f"{name} = own_signals:{name}" for name in NAMES)
    (described / "entry_points.txt").write_text(f"[penstock.process_signals]\n{entries}\n")
    monkeypatch.syspath_prepend(tmp_path)
    function.cache_clear()
    yield
    function.cache_clear()
    reward_process.close()


def settings(*names: str) -> RewardSettings:
    signal = ProcessSignal(weight=0.02, per=SignalSpan.STEP, source=SignalSource.FUNCTION)
    return RewardSettings(process={"ill_formed_tool_call": signal, **dict.fromkeys(names, signal)})


def group_of(*performances: float) -> TerminalGroup:
    """Members of two steps, the first of them ill-formed."""
    step = StepReading(
        idx=0,
        parse=ParseStatus.ILL_FORMED,
        reply={"role": "assistant", "content": "<oops"},
        marks=frozenset(),
        versions=frozenset({0}),
    )
    members = [
        GroupMember(
            rollout_id=member + 1,
            member=member,
            attempt=1,
            state=RolloutState.VERIFIED,
            failure=FailureClass.COMPLETED,
            reason=None,
            performance=performance,
            verdict_revision=1,
            agent_s=10.0,
            queued_s=0.0,
            steps=[step, replace(step, idx=1, parse=ParseStatus.OK)],
        )
        for member, performance in enumerate(performances)
    ]
    return TerminalGroup(
        group_id=1,
        purpose=Purpose.TRAIN,
        domain="general",
        scaffold="shell",
        pinned_version=None,
        settings={},
        members=members,
    )


async def rewarded(*names: str, group: TerminalGroup | None = None) -> RewardedGroup:
    compute = partial(reward_group_apart, group or group_of(0.0, 1.0), [0, 1], settings(*names))
    return await anyio.to_thread.run_sync(compute)


@pytest.mark.usefixtures("installed")
async def test_signals_of_plug_ins_pay_as_they_would_in_the_orchestrator_itself() -> None:
    here = reward_group(group_of(0.0, 1.0), [0, 1], settings("half", "raises"))
    assert await rewarded("half", "raises") == here
    assert [reward.process_by_signal["half"] for reward in here.rewards] == [pytest.approx(0.02)] * 2
    assert await rewarded("half", "raises") == here
    assert len(reward_process._idle) == 1, "the process is kept for the next group"


@pytest.mark.usefixtures("installed")
async def test_every_input_of_a_reward_crosses_to_the_process() -> None:
    """Marks, tools, a sub-agent, and the verifier's scores of both forms."""
    group = group_of(0.0, 1.0)
    first = group.members[0]
    call = {"name": "bash", "arguments": '{"command": "ls"}'}
    ls = replace(
        first.steps[1],
        reply={"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        tools=(ToolResult(name="bash", exit_code=0, bytes=12, seconds=0.5),),
        agent="helper",
    )
    steps = [ls, replace(ls, idx=1), replace(ls, idx=2, marks=frozenset({MarkReason.CUT_OFF})), *first.steps]
    judged: dict[str, float | Sequence[float]] = {"style": [0.5, -1, 0.0], "whole": 1}
    group = replace(group, members=[replace(first, steps=steps, judged=judged), *group.members[1:]])
    verified = ProcessSignal(source=SignalSource.VERIFIER)
    full = replace(
        RewardSettings(), process={**RewardSettings().process, "style": verified, "whole": verified}
    )
    with_own = replace(full, process={**full.process, **settings("half").process})
    here = reward_group(group, [0, 1], with_own, 0.25)
    compute = partial(reward_group_apart, group, [0, 1], with_own, 0.25)
    assert await anyio.to_thread.run_sync(compute) == here
    paid = here.rewards[0].process_by_signal
    assert all(paid[name] for name in ("style", "whole", "half", "repeated_calls")), paid


@pytest.mark.usefixtures("installed")
async def test_what_a_signal_prints_and_reads_does_not_reach_the_orchestrator() -> None:
    found = await rewarded("prints")
    assert found.failed == () and found.rewards[0].process_by_signal["prints"] == pytest.approx(0.02)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("crashes", "its process was killed by SIGSEGV"),
        ("ends", "its process ended with status 0"),
        ("leaves", "SystemExit: 3"),
        ("holds", "the group takes longer than 0.5 s, half of timeouts.rewards_s"),
    ],
)
async def test_a_signal_that_ends_or_holds_its_process_costs_the_signals_of_plug_ins_alone(
    name: str, why: str
) -> None:
    with use(Timeouts(rewards_s=1.0)):
        found = await rewarded(name, "half")
    [sentence] = found.failed
    assert sentence.startswith(f"process signal {name} or half: {why}")
    plain = reward_group(group_of(0.0, 1.0), [0, 1], settings())
    assert found.rewards == plain.rewards and found.silent is None
    assert (await rewarded("half")).failed == ()


@pytest.mark.usefixtures("installed")
async def test_a_process_that_ended_while_it_waited_costs_no_signal() -> None:
    assert (await rewarded("half")).failed == ()
    [process] = reward_process._idle
    process.kill()
    process.wait()
    assert (await rewarded("half")).failed == ()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("odd", [10**400, -(2**70)], ids=["wide", "below 64 bits"])
async def test_a_value_that_does_not_cross_costs_the_signals_of_plug_ins_alone(odd: int) -> None:
    group = replace(group_of(0.0, 1.0), settings={"agent": {"odd": odd}})
    found = await rewarded("half", group=group)
    assert [reward.process_by_signal.keys() for reward in found.rewards] == [{"ill_formed_tool_call"}] * 2
    [sentence] = found.failed
    assert sentence.startswith("process signal half: the group cannot be sent to another process")


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    signals = {"holds": {"weight": 0.02}, "half": {"weight": 0.02}}
    async with staged(engine, nats_server.url, reward={"speed_weight": 0.0, "process": signals}) as stage:
        yield stage


@pytest.mark.usefixtures("installed")
async def test_a_group_whose_text_a_signal_never_gets_through_is_ready_without_that_signal(
    stage: Stage,
) -> None:
    held = await running(stage.context.engine, stage.run, 2)
    for n, lease in enumerate(held):
        events = [grown.event for grown in Tree(n).grow(stage.run.name, lease, 3)]
        await record(stage.context.engine, stage.run, events)
        assert await report(stage.context, ended(stage.run.name, lease, events))
    with use(Timeouts(rewards_s=2.0)):
        async with playing([partial(ingest_verdicts, stage.context)]):
            await judge(stage, held)
            await until(partial(is_group, stage, held[0].group_id, "ready"))
    assert await counter(stage.context.engine, stage.run, "process_signals_failed") == 1
    assert await stage.count("rewards") == 2 and await stage.count("dead_letters") == 0
