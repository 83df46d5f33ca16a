"""A result that the bus can never accept fails its attempt, with the reason, under its own id."""

import pytest

from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import JournalEntry
from orchestrator.contracts.events import (
    ArtifactFile,
    RolloutFinished,
    TestResult,
    VerdictReached,
    decode,
    encode,
)
from orchestrator.contracts.states import FailureClass
from orchestrator.runner.oversize import failed_instead

pytestmark = pytest.mark.anyio

REASON = "the message for results has 9,000,000 bytes and the NATS server takes at most 1,048,576"


async def test_a_result_is_graded_0_without_what_made_it_large() -> None:
    event = RolloutFinished(
        run="demo",
        rollout=7,
        attempt=2,
        epoch=3,
        failure_class=FailureClass.COMPLETED,
        steps=4,
        last_idx=3,
        digest="ab",
        answer="x" * 10,
        artifacts=[ArtifactFile(path="big", body="eA==")],
        log="l",
        agent_s=1.5,
    )
    entry = JournalEntry(
        1,
        Outgoing(
            subject="results.rollout.demo",
            msg_id="7:3:0:result",
            schema=RolloutFinished.schema(),
            body=encode(event),
        ),
    )
    instead = await failed_instead(entry, REASON)
    assert (instead.subject, instead.msg_id) == ("results.rollout.demo", "7:3:0:result")
    decoded = decode(instead.body, instead.schema, RolloutFinished)
    assert (decoded.rollout, decoded.attempt, decoded.epoch, decoded.steps, decoded.agent_s) == (
        7,
        2,
        3,
        4,
        1.5,
    )
    assert (decoded.failure_class, decoded.reason) == ("policy_failure", f"result too large: {REASON}")
    assert (decoded.answer, decoded.artifacts, decoded.log, decoded.resumable) == (None, [], "", False)


@pytest.mark.parametrize("large", ["tests", "process"])
async def test_a_verdict_keeps_its_reward_and_says_what_is_left_out(large: str) -> None:
    event = VerdictReached(
        run="demo",
        rollout=7,
        attempt=2,
        epoch=3,
        failure_class=FailureClass.COMPLETED,
        reward=1.0,
        components={"reward": 1.0},
        tests=[TestResult(name="t", passed=True)] * (1000 if large == "tests" else 1),
        process={"plan": [0.5] * (20_000 if large == "process" else 1)},
        log="l",
    )
    entry = JournalEntry(
        1,
        Outgoing(
            subject="results.verdict.demo",
            msg_id="7:3:0:verdict",
            schema=VerdictReached.schema(),
            body=encode(event),
        ),
    )
    decoded = decode((await failed_instead(entry, REASON)).body, VerdictReached.schema(), VerdictReached)
    assert (decoded.failure_class, decoded.reward, decoded.components) == ("completed", 1.0, {"reward": 1.0})
    assert (decoded.tests, decoded.process is None) == ([], large == "process")
    assert (
        decoded.log.startswith("note: left out: the tests and the log: result too large: ")
        and REASON in decoded.log
    )
