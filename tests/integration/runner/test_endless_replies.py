"""A policy whose first reply does not end: the attempt is a time-out, and what it sampled is on record with the mark `cut_off`."""

from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.gateway.rig import Policies, running_proxy
from tests.integration.runner.rig import open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]

PROGRAM = str(Path(__file__).parent / "steady_scaffold")
TASK = Task.from_files(
    {"task.toml": b"", "instruction.md": b"Count.", "tests/test.sh": b"echo 0 > /logs/verifier/reward.txt\n"}
)
SAMPLED = 3


@pytest.mark.parametrize("scaffold", ["shell", PROGRAM], ids=["white box", "black box"])
async def test_a_first_reply_that_does_not_end_is_a_timeout_and_its_tokens_are_on_record(
    scaffold: str,
    database_url: str,
    nats_server: EmbeddedNats,
    server_url: str,
    directory: Path,
    policies: Policies,
) -> None:
    async with (
        running_proxy(server_url) as proxy,
        open_rig(
            database_url,
            nats_server.url,
            directory,
            policies.model,
            server_url=proxy.url,
            completion_s=2.0,
            timeout_s=3600.0,
        ) as rig,
    ):
        proxy.stops = [SAMPLED] * 9
        await rig.publish(policies.versions[0])
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(TASK, scaffold=scaffold)
        await rig.state(rollout, "verified")
        [attempt] = await rig.attempts(rollout)
        assert attempt.failure_class == "timeout"
        assert attempt.reason == "a completion has been open for 2 s"
        [step] = await rig.rows("SELECT * FROM steps WHERE rollout_id = :id", id=rollout)
        assert step.finish == "abort" and len(step.action) == 4 * SAMPLED
        marks = await rig.rows("SELECT idx, reason FROM step_marks WHERE rollout_id = :id", id=rollout)
        assert [tuple(mark) for mark in marks] == [(0, "cut_off")]
