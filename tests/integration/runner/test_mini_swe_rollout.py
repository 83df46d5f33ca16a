"""Demonstrations under mini-swe-agent, from the assignment to the verdict: runner, sandbox, program, gateway, verifier."""

import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.suite.record import demonstrations
from tests.integration.runner.rig import open_rig
from trainer.policy.init import make_policy
from trainer.policy.tokenizer import load_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("tasks")]

SCAFFOLD = "mini-swe-agent"


async def test_good_demonstrations_pass_and_are_one_conversation_each(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    model = make_policy(tmp_path / "policy", seed=0)
    tokenizer = load_tokenizer(model)
    drawn = demonstrations(80, 0, {SCAFFOLD: 1.0})
    copies = [b"copy_observation" in item.task.files["record/script.json"].data for item in drawn]
    copied = next(item for item, copy in zip(drawn, copies, strict=True) if copy and item.good)
    answered = next(item for item, copy in zip(drawn, copies, strict=True) if not copy and item.good)
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        async with open_rig(database_url, nats_server.url, Path(name), model, observation_lines=3) as rig:
            rig.start_runner()
            rig.start_verifier()
            rollouts = [await rig.submit(item.task, scaffold=SCAFFOLD) for item in (copied, answered)]
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have several users")
async def test_a_program_with_a_relay_runs_as_the_user_that_its_task_names(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    model = make_policy(tmp_path / "policy", seed=0)
    item = next(each for each in demonstrations(20, 0, {SCAFFOLD: 1.0}) if each.good)
    toml = item.task.files["task.toml"].data.replace(b"[agent]\n", b"[agent]\nuser = 1234\n")
    assert b"user = 1234" in toml
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        async with open_rig(database_url, nats_server.url, Path(name), model) as rig:
            rig.start_runner()
            rig.start_verifier()
            rollout = await rig.submit(item.task.with_file("task.toml", toml), scaffold=SCAFFOLD)
            assert await rig.verdict(rollout) == 1.0
            (attempt,) = await rig.attempts(rollout)
            assert attempt.failure_class == "completed" and attempt.answer, attempt
