"""A result that the bus can never take fails its attempt, with the reason, under its own id."""

import pytest

from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import Entry
from orchestrator.contracts.events import ArtifactFile, RolloutFinished, VerdictReached, decode, encode
from orchestrator.flow.oversize import failed_instead

pytestmark = pytest.mark.anyio

REASON = "the message for results has 9,000,000 bytes and the NATS server takes at most 1,048,576"


async def test_a_result_becomes_an_infrastructure_failure_without_what_made_it_large() -> None:
    event = RolloutFinished(
        run="demo", rollout=7, attempt=2, epoch=3, failure_class="completed", steps=4, last_idx=3, digest="ab",
        answer="x" * 10, artifacts=[ArtifactFile("big", "eA==")], log="l", agent_s=1.5, resumable=True,
    )  # fmt: skip
    entry = Entry(
        1, Outgoing("results.rollout.demo", "7:3:0:result", RolloutFinished.schema(), encode(event))
    )
    instead = await failed_instead(entry, REASON)
    assert (instead.subject, instead.msg_id) == ("results.rollout.demo", "7:3:0:result")
    said = decode(instead.body, instead.schema, RolloutFinished)
    assert (said.rollout, said.attempt, said.epoch, said.steps, said.agent_s) == (7, 2, 3, 4, 1.5)
    assert (said.failure_class, said.reason) == ("infra_failure", f"result too large: {REASON}")
    assert (said.answer, said.artifacts, said.log, said.resumable) == (None, [], "", False)


async def test_a_verdict_becomes_a_verifier_failure_and_never_a_reward() -> None:
    event = VerdictReached(
        run="demo", rollout=7, attempt=2, epoch=3, failure_class="completed", reward=1.0, log="l"
    )
    entry = Entry(
        1, Outgoing("results.verdict.demo", "7:3:0:verdict", VerdictReached.schema(), encode(event))
    )
    said = decode((await failed_instead(entry, REASON)).body, VerdictReached.schema(), VerdictReached)
    assert (said.failure_class, said.reward, said.log) == ("verifier_failure", None, "")
    assert said.reason.endswith(REASON)
