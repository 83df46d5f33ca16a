"""Demonstrations under mini-swe-agent, from the assignment to the verdict: runner, sandbox, program, gateway, verifier."""

import tempfile
from pathlib import Path

import pytest

from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.tasks.suite.record import demonstrations
from tests.integration.runner_rig import open_rig
from trainer.policy.init import make_policy
from trainer.policy.tokenizer import load_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.services]

SCAFFOLD = "mini-swe-agent"


async def test_good_demonstrations_pass_and_are_one_conversation_each(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    model = make_policy(tmp_path / "policy", seed=0)
    tokenizer = load_tokenizer(model)
    drawn = demonstrations(80, 0, {SCAFFOLD: 1.0})
    copies = [b"copy_observation" in item.task.files["record/script.json"] for item in drawn]
    copied = next(item for item, copy in zip(drawn, copies, strict=True) if copy and item.good)
    said = next(item for item, copy in zip(drawn, copies, strict=True) if not copy and item.good)
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        async with open_rig(database_url, nats_server.url, Path(name), model) as rig:
            rig.start_runner()
            rig.start_verifier()
            rollouts = [await rig.submit(item.task, scaffold=SCAFFOLD) for item in (copied, said)]
            for rollout in rollouts:
                verdict = await rig.verdict(rollout)
                (attempt,) = await rig.attempts(rollout)
                assert verdict == 1.0 and attempt.failure_class == "completed", attempt
                assert attempt.scaffold_version == "2.4.6" and attempt.answer
                steps = await rig.rows(
                    "SELECT kind, state_len, parse, action FROM steps WHERE rollout_id = :id ORDER BY idx",
                    id=rollout,
                )
                assert [step.kind for step in steps] == ["root"] + ["continues"] * (len(steps) - 1)
                assert all(step.parse == "ok" for step in steps) and steps[-1].state_len < 200
                ids = memoryview(steps[-1].action).cast("i").tolist()
                assert "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in tokenizer.decode(ids)
                assert len(ids) < 40
