"""A rollout server that accepts a call and never answers it, while its other routes answer: its attempts end all the same."""

from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.gateway.rig import Policies, running_proxy
from tests.integration.runner.rig import open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]

PROGRAM = str(Path(__file__).parent / "steady_scaffold")
TASK = Task.from_files(
    {"task.toml": b"", "instruction.md": b"Count.", "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt\n"}
)


@pytest.mark.parametrize("scaffold", ["shell", PROGRAM], ids=["white box", "black box"])
async def test_an_attempt_whose_call_a_server_never_answers_ends_after_the_longest_completion(
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
        proxy.most = 0
        await rig.publish(policies.versions[0])
        rig.start_runner()
        rollout = await rig.submit(TASK, scaffold=scaffold)
        await rig.state(rollout, "lost")
        attempts = await rig.attempts(rollout)
        assert attempts and {(row.failure_class, row.reason) for row in attempts} == {
            ("infra_failure", "a completion has been open for 2 s")
        }
        assert not proxy.requests and proxy.seen.count("/generate") >= len(attempts)
