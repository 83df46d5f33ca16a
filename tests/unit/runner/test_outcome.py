"""Exceptions into failure classes."""

from dataclasses import replace

import pytest
from scaffolds.base import PolicyFault

from orchestrator.contracts.errors import AgentTimeout, Hung, InfraFailure, PolicyFailure, ServiceError
from orchestrator.contracts.events import StepMark
from orchestrator.contracts.states import FailureClass, Replay
from orchestrator.gateway_client import BudgetExhausted, GatewayAway, GatewayRefused, Seal
from orchestrator.runner.outcome import (
    AttemptOutcome,
    captured,
    judged,
    replayed,
)
from sandboxes.base import ImageRefused, MachineFault, SandboxError, SandboxLost, SandboxSpent

pytestmark = pytest.mark.anyio

POLICY, INFRA = FailureClass.POLICY_FAILURE, FailureClass.INFRA_FAILURE


async def outcome(error: Exception) -> AttemptOutcome:
    async def work() -> AttemptOutcome:
        raise error

    return await captured(work)


@pytest.mark.parametrize(
    ("error", "failure", "reason"),
    [
        (PolicyFault("turns"), POLICY, "turns"),
        (PolicyFailure("ill-formed"), POLICY, "ill-formed"),
        (BudgetExhausted("context", "the budget is used up"), POLICY, "context"),
        (AgentTimeout("wall clock"), FailureClass.TIMEOUT, "wall clock"),
        (InfraFailure("gateway"), INFRA, "gateway"),
        (SandboxError("no disk"), INFRA, "sandbox: no disk"),
        (SandboxSpent("its memory"), INFRA, "sandbox: its memory"),
        (MachineFault("too many open files"), INFRA, "sandbox: too many open files"),
        (ImageRefused("environment/Dockerfile: no"), INFRA, "task: environment/Dockerfile: no"),
        (GatewayRefused(400, "x", "malformed"), INFRA, "scaffold: GatewayRefused"),
        (KeyError("x"), INFRA, "scaffold: KeyError"),
        (TimeoutError(), INFRA, "scaffold: TimeoutError"),
        (ExceptionGroup("two", [PolicyFault("turns"), SandboxError("no disk")]), INFRA, "sandbox: no disk"),
        (ExceptionGroup("one", [ExceptionGroup("in one", [PolicyFault("turns")])]), POLICY, "turns"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_every_exception_has_a_failure_class(
    error: Exception, failure: FailureClass, reason: str
) -> None:
    found = await outcome(error)
    assert (found.failure, found.reason, found.answer) == (failure, reason, None)
    assert found.scaffold_error == reason.startswith("scaffold: ")


async def test_what_a_person_must_mend_is_not_data() -> None:
    with pytest.raises(ServiceError):
        await outcome(ServiceError("the secret is wrong"))


async def test_a_sandbox_that_its_programs_used_up_is_the_policys_doing_once_it_was_served() -> None:
    spent = await outcome(SandboxSpent("its memory"))
    assert judged(spent, seal(0)).infra and not spent.resumable
    assert judged(spent, seal(3)).failure is POLICY
    assert judged(spent, seal(3, failing="no rollout server answers")).infra
    assert judged(await outcome(SandboxError("no process can be started")), seal(3)).failure is POLICY
    assert judged(await outcome(SandboxLost("the node is gone")), seal(3)).infra
    assert judged(await outcome(MachineFault("cannot place x: no space")), seal(3)).infra
    assert (
        judged(await outcome(Hung("a completion has been open for 60 s")), seal(3)).failure
        is FailureClass.TIMEOUT
    )
    assert judged(await outcome(KeyError("what the policy wrote")), seal(3)).failure is POLICY
    assert judged(await outcome(AgentTimeout("stall")), seal(0)).infra
    assert judged(await outcome(AgentTimeout("stall")), seal(3, failing="no server")).infra
    assert judged(await outcome(AgentTimeout("stall")), seal(3)).failure is FailureClass.TIMEOUT


async def test_texts_fit_a_message_and_postgres() -> None:
    found = AttemptOutcome(
        failure=FailureClass.COMPLETED, answer="a\x00b\ud800", log="x" * 5000, reason="y" * 5000
    )
    assert found.answer == "a\ufffdb?" and len(found.log) == 4096 and len(found.reason or "") == 1000


def seal(
    steps: int,
    *marks: StepMark,
    exhausted: str | None = None,
    failing: str | None = None,
    last_failed: str | None = None,
) -> Seal:
    return Seal(
        steps=steps,
        last_idx=steps - 1,
        digest="",
        marks=marks,
        queued_s=0.0,
        calls=steps,
        exhausted=exhausted,
        sampled_tokens=0,
        failing=failing,
        last_failed=last_failed,
    )


DONE = AttemptOutcome(failure=FailureClass.COMPLETED, answer="4", reachable=True)
DIED = AttemptOutcome(failure=INFRA, reason="the program ended with exit code 137", reachable=True)


@pytest.mark.parametrize(
    ("outcome", "seal", "failure", "reason"),
    [
        (DIED, seal(0), INFRA, DIED.reason),
        (DIED, seal(1), POLICY, DIED.reason),
        (DIED, seal(1, StepMark(0, "auxiliary")), INFRA, DIED.reason),
        (DIED, seal(1, StepMark(0, "undelivered")), INFRA, DIED.reason),
        (DIED, seal(2, StepMark(0, "auxiliary"), StepMark(0, "undelivered")), POLICY, DIED.reason),
        (DIED, seal(1, StepMark(0, "version_suspect")), POLICY, DIED.reason),
        (DIED, seal(3, failing="no rollout server answers"), INFRA, "gateway: no rollout server answers"),
        (DIED, seal(3, exhausted="turns"), POLICY, "turns"),
        (replace(DIED, answer="no room"), seal(0, exhausted="context"), POLICY, "context"),
        (DONE, seal(3, exhausted="turns"), FailureClass.COMPLETED, None),
        (
            AttemptOutcome(failure=INFRA, reason="x", reachable=True, platform="it was restarted"),
            seal(3),
            INFRA,
            "gateway: it was restarted",
        ),
        (AttemptOutcome(failure=INFRA, reason="sandbox: gone"), seal(3), INFRA, "sandbox: gone"),
        (DONE, seal(3), FailureClass.COMPLETED, None),
        (DONE, seal(3, failing="full", last_failed="full"), INFRA, "gateway: full"),
        (DONE, seal(3, failing="full"), FailureClass.COMPLETED, None),
        (DONE, seal(0), INFRA, "no completion reached the program"),
        (DONE, seal(1, StepMark(0, "auxiliary")), INFRA, "no completion reached the program"),
    ],
)
def test_once_a_program_had_a_completion_its_early_end_is_the_policys_unless_the_platform_was_seen_to_fail(
    outcome: AttemptOutcome, seal: Seal, failure: FailureClass, reason: str | None
) -> None:
    found = judged(outcome, seal)
    assert (found.failure, found.reason) == (failure, reason)


RESUMED = Seal(
    steps=9,
    last_idx=8,
    digest="",
    marks=(),
    queued_s=0.0,
    calls=9,
    exhausted=None,
    sampled_tokens=100,
    recorded=7,
    replayed=7,
    replayed_s=3.0,
)  # seven steps served again, two new ones


@pytest.mark.parametrize(
    ("ended", "seal", "failure", "replay", "resumable"),
    [
        (
            AttemptOutcome(failure=FailureClass.COMPLETED),
            RESUMED,
            FailureClass.COMPLETED,
            Replay.CONTINUED,
            False,
        ),
        (AttemptOutcome(failure=POLICY, reason="turns"), RESUMED, POLICY, Replay.CONTINUED, False),
        (
            AttemptOutcome(failure=FailureClass.COMPLETED),
            replace(RESUMED, missing=2),
            INFRA,
            Replay.DIVERGED,
            False,
        ),
        (
            AttemptOutcome(failure=FailureClass.TIMEOUT),
            replace(RESUMED, missing=2),
            INFRA,
            Replay.DIVERGED,
            False,
        ),
        (
            AttemptOutcome(failure=INFRA, reason="sandbox: gone", resumable=True),
            replace(RESUMED, missing=2),
            INFRA,
            Replay.INTERRUPTED,
            True,
        ),
        (
            AttemptOutcome(failure=INFRA, reason="sandbox: gone", resumable=True),
            replace(RESUMED, parted="so"),
            INFRA,
            Replay.DIVERGED,
            False,
        ),
        (
            AttemptOutcome(failure=FailureClass.COMPLETED),
            replace(RESUMED, parted="so"),
            INFRA,
            Replay.DIVERGED,
            False,
        ),
        (
            AttemptOutcome(failure=FailureClass.COMPLETED),
            replace(RESUMED, recorded=0),
            FailureClass.COMPLETED,
            None,
            False,
        ),
    ],
    ids=[
        "went on",
        "used up",
        "ended early",
        "out of time",
        "lost again",
        "parted, lost",
        "parted",
        "no resume",
    ],
)
def test_an_end_counts_only_if_the_recorded_steps_were_gone_through_again(
    ended: AttemptOutcome, seal: Seal, failure: FailureClass, replay: Replay | None, resumable: bool
) -> None:
    found = replayed(ended, seal)
    assert (found.failure, found.replay, found.resumable) == (failure, replay, resumable)
    assert ((found.reason or "").startswith("replay: ")) is (replay is Replay.DIVERGED)


async def test_a_dead_sandbox_and_an_absent_gateway_can_be_resumed_and_a_fault_of_the_scaffold_cannot() -> (
    None
):
    assert (await outcome(SandboxError("gone"))).resumable
    assert (await outcome(MachineFault("no space"))).resumable
    assert (await outcome(GatewayAway("no gateway answers"))).resumable
    assert not (await outcome(KeyError("x"))).resumable
    assert not (await outcome(InfraFailure("task: no such image"))).resumable
