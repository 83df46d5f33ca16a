"""The table of the guide "How attempts end": one test per row, and that its rows are those that are tested."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scaffolds.base import PolicyFault

from orchestrator.contracts.errors import AgentTimeout, Hung
from orchestrator.contracts.events import StepMark
from orchestrator.contracts.marks import MarkReason
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.gateway_client import BudgetExhausted, GatewayAway, GatewayFailed, Seal
from orchestrator.rewards import composite
from orchestrator.rewards.actions import ParsedAction, RecordedStep
from orchestrator.rewards.returns import group_advantages
from orchestrator.rewards.settings import RewardSettings
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.collect import artifacts_of
from orchestrator.runner.outcome import AttemptOutcome, captured, judged
from orchestrator.scheduling.completion import Member, trainable
from orchestrator.settings.config import Config
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifacts import limits_of
from orchestrator.tasks.message import Part
from sandboxes.base import Artifacts, MachineFault, RefusedReason, SandboxError, SandboxLost, SandboxSpent

pytestmark = pytest.mark.anyio

LIMITS = limits_of(SandboxSection())
GUIDE = Path(__file__).parents[3] / "ops/guides/how-attempts-end.md"
DONE = AttemptOutcome(failure=FailureClass.COMPLETED, answer="7", reachable=True)


async def kept(parts: Mapping[str, Part]) -> None:
    assert not parts


class UsedSandbox:
    """A sandbox's report of its changed files."""

    def __init__(self, left: Artifacts | Exception) -> None:
        self._left = left

    async def changed(self, limits: object = None) -> Artifacts:
        if isinstance(self._left, Exception):
            raise self._left
        return self._left


MUCH = Artifacts(
    added={},
    modified={},
    deleted=(),
    refused=(("big", RefusedReason.TOO_LARGE),),
    complete=False,
    counts={RefusedReason.TOO_LARGE: 1},
)
DIED = AttemptOutcome(failure=FailureClass.INFRA_FAILURE, reason="exit code 137", reachable=True)
ENDS: dict[str, AttemptOutcome | Exception | UsedSandbox] = {
    "completed": DONE,
    "turns used up": BudgetExhausted("turns", "used up"),
    "ill-formed output": PolicyFault("ill_formed"),
    "wall clock": AgentTimeout("wall clock"),
    "stall of a command": AgentTimeout("stall"),
    "stall of the scaffold": Hung("stall"),
    "completion held open": Hung("a completion has been open"),
    "program dies": DIED,
    "sandbox used up": SandboxSpent("memory"),
    "sandbox fails": SandboxError("no process can be started"),
    "scaffold raises": KeyError("x"),
    "call fails over what it holds": GatewayFailed("gateway: refused upstream"),
    "too much left": UsedSandbox(MUCH),
    "what it left cannot be read": UsedSandbox(PermissionError("app")),
    "sandbox killed from outside": SandboxLost("killed"),
    "the machine fails the sandbox: descriptors, disk": MachineFault("no space left on device"),
    "gateway away": GatewayAway("no answer"),
}


def seal(steps: int) -> Seal:
    return Seal(
        steps=steps,
        last_idx=steps - 1,
        digest="",
        marks=(),
        queued_s=0.0,
        calls=steps,
        exhausted=None,
        sampled_tokens=0,
    )


async def ended(end: AttemptOutcome | Exception | UsedSandbox, steps: int) -> AttemptOutcome:
    async def work() -> AttemptOutcome:
        if isinstance(end, Exception):
            raise end
        return DONE if isinstance(end, UsedSandbox) else end

    outcome = await captured(work)
    if isinstance(end, UsedSandbox):
        sandbox: Any = end
        outcome, left = await artifacts_of(sandbox, outcome, "token", LIMITS, kept)
        assert left == []
    return judged(outcome, seal(steps))


def rows() -> dict[str, list[str]]:
    lines = [line for line in GUIDE.read_text().splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {row[0]: row[1:] for row in table}


def test_the_guide_has_the_ends_that_are_tested() -> None:
    assert list(rows()) == list(ENDS)


async def test_the_guides_for_authors_say_that_their_exception_counts_against_the_policy_after_a_served_step() -> (
    None
):
    ends = [(await ended(ENDS["scaffold raises"], steps)).failure.value for steps in (0, 3)]
    for page, words in (
        ("bring-your-own-agent.md", "exception in your class"),
        ("python-api.md", "error of your class"),
    ):
        text = (GUIDE.parent / page).read_text()
        found = [line for line in text.splitlines() if words in line.lower()]
        assert sorted(re.findall(r"infra_failure|policy_failure", " ".join(found))) == ends, page
        assert "(how-attempts-end.md)" in text


@pytest.mark.parametrize("name", ENDS)
async def test_an_attempt_ends_as_the_guide_says(name: str) -> None:
    before, after, reward, trains = rows()[name]
    first, later = await ended(ENDS[name], 0), await ended(ENDS[name], 3)
    assert (f"`{first.failure}`", f"`{later.failure}`") == (before, after)
    rewarded = "none: tried again" if later.infra else "0" if later.ungradable else "as verified"
    kept = trainable(
        [Member(0, RolloutState.VERIFIED, later.failure)], train_timeouts=Config().rollout.train_timeouts
    )
    assert (rewarded, "yes" if kept else "no") == (reward, trains)
    assert later.infra or not later.resumable


@pytest.mark.parametrize("hooks_s", [0.0, 60.0])
@pytest.mark.parametrize(
    ("steps", "generation_s", "failure"),
    [
        (1, 9.0, FailureClass.TIMEOUT),
        (1, 1.0, FailureClass.INFRA_FAILURE),
        (3, 9.0, FailureClass.INFRA_FAILURE),  # a program that waits for no reply long enough
    ],
)
async def test_a_first_reply_that_takes_all_the_time_is_the_policys_timeout(
    steps: int, generation_s: float, failure: FailureClass, hooks_s: float
) -> None:
    clocks = Clocks(timeout_s=10.0, stall_s=None, completion_s=60.0)
    clocks.replayed_s, clocks.counted_s = 10.0, hooks_s

    async def work() -> AttemptOutcome:
        raise AgentTimeout("wall clock: the limit of 10 s")

    marks = tuple(StepMark(idx=idx, reason=MarkReason.UNDELIVERED) for idx in range(steps))
    unserved = replace(seal(steps), marks=marks, generation_s=generation_s)
    assert judged(await captured(work), unserved, clocks).failure is failure


CUT, LOST, TITLE = MarkReason.CUT_OFF, MarkReason.UNDELIVERED, MarkReason.AUXILIARY


@pytest.mark.parametrize(
    ("marks", "generation_s", "recorded", "failure"),
    [
        ([(0, CUT)], 9.0, 0, FailureClass.TIMEOUT),
        ([(0, CUT)], 1.0, 0, FailureClass.INFRA_FAILURE),  # the platform had most of the time
        ([(0, CUT), (1, CUT)], 9.0, 0, FailureClass.TIMEOUT),  # two agents at once
        ([(0, CUT), (1, LOST)], 9.0, 0, FailureClass.TIMEOUT),  # its program requests it again at once
        ([(0, TITLE), (1, CUT)], 9.0, 0, FailureClass.TIMEOUT),
        ([(0, TITLE), (0, CUT)], 9.0, 0, FailureClass.INFRA_FAILURE),  # no reply of the policy's own
        ([(0, LOST)], 9.0, 0, FailureClass.INFRA_FAILURE),  # the program gave it up
        (
            [(0, LOST), (1, LOST), (2, CUT)],
            9.0,
            0,
            FailureClass.INFRA_FAILURE,
        ),  # it waits for no reply long enough
        ([(2, CUT)], 9.0, 2, FailureClass.TIMEOUT),  # a resumed attempt
        ([(0, LOST), (1, CUT), (2, LOST)], 9.0, 2, FailureClass.INFRA_FAILURE),  # its earlier lease ended so
    ],
)
async def test_a_first_reply_that_never_ends_is_the_policys_timeout(
    marks: list[tuple[int, MarkReason]], generation_s: float, recorded: int, failure: FailureClass
) -> None:
    clocks = Clocks(timeout_s=10.0, stall_s=None, completion_s=60.0)
    clocks.replayed_s = 10.0

    async def work() -> AttemptOutcome:
        raise Hung("a completion has been open for 60 s")

    steps = max(idx for idx, _ in marks) + 1
    sealed = replace(
        seal(steps),
        marks=tuple(StepMark(idx=idx, reason=reason) for idx, reason in marks),
        generation_s=generation_s,
        recorded=recorded,
    )
    assert judged(await captured(work), sealed, clocks).failure is failure


@pytest.mark.parametrize(
    "name", [name for name in ENDS if not name.startswith(("sandbox killed", "the machine", "gateway away"))]
)
async def test_no_end_of_the_policys_doing_is_better_than_a_wrong_answer(name: str) -> None:
    """OK, OK, this end with nothing achieved, WRONG: both stay in the group, and it is not the better one."""
    end = await ended(ENDS[name], 3)
    completed = FailureClass.COMPLETED
    failures = [completed, completed, end.failure, completed]
    members = [Member(i, RolloutState.VERIFIED, failure) for i, failure in enumerate(failures)]
    assert trainable(members, train_timeouts=Config().rollout.train_timeouts) == (0, 1, 2, 3)
    settings = RewardSettings.of(Config().reward)
    tries = [
        composite.VerifiedMember(
            member=i, performance=right, agent_s=9.0, steps=[RecordedStep(ParsedAction(content="7"))]
        )
        for i, right in enumerate([1, 1, 0, 0])
    ]
    advantages = [
        m.steps[0].advantage for m in group_advantages(composite.group_rewards(tries, settings), settings)
    ]
    assert advantages[2] <= advantages[3] < 0 < advantages[0]
