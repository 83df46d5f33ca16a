"""ATIF documents: valid by the format's rules, exact in ids and logprobs, honest about branches."""

import json
from pathlib import Path

import pytest

from orchestrator.contracts.ids import ids_from_bytes, logprobs_from_bytes
from orchestrator.export.atif import Atif
from orchestrator.pool.tables import steps
from tests.integration.export.atif_schema import Trajectory
from tests.integration.export.rig import TALK, ExportedRun, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


def documents(out: Path) -> list[Trajectory]:
    files = sorted(out.glob("trajectories/*/*.json"), key=lambda file: int(file.stem.split("-")[1]))
    return [Trajectory.model_validate_json(file.read_bytes()) for file in files]


async def test_every_attempt_is_one_document_that_keeps_every_rule_of_the_format(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    done = await exported_run.export(Atif(), tmp_path / "out")
    found = documents(tmp_path / "out")
    assert (done.attempts, done.steps, len(found)) == (12, 72, 12)
    assert len({document.trajectory_id for document in found}) == 12


async def test_ids_logprobs_and_versions_are_those_of_the_data_pool(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await exported_run.export(Atif(), tmp_path / "out")
    rows = {(row.rollout_id, row.idx): row for row in await exported_run.rows(steps)}
    seen = 0
    for document in documents(tmp_path / "out"):
        assert document.extra is not None
        rollout = document.extra["penstock"]["rollout"]
        for part in [document, *(document.subagent_trajectories or [])]:
            for step in part.steps:
                if step.metrics is None:
                    continue
                assert step.metrics.extra is not None
                about = step.metrics.extra["penstock"]
                row = rows[rollout, about["step"]]
                assert step.metrics.completion_token_ids == ids_from_bytes(row.action).tolist()
                assert step.metrics.logprobs == logprobs_from_bytes(row.logprobs).astype(float).tolist()
                assert step.metrics.prompt_tokens == row.state_len
                assert about["policy_versions"] == [
                    {"version": 0, "start": 0, "end": len(step.metrics.completion_token_ids or [])}
                ]
                seen += 1
    assert seen == len(rows)


async def test_sub_agents_and_rewritten_histories_are_documents_of_their_own(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await exported_run.export(Atif(), tmp_path / "out")
    document = documents(tmp_path / "out")[0]
    assert [(step.source, step.message) for step in document.steps] == [
        ("system", "be brief"),
        ("user", "count the files"),
        ("agent", ""),
        ("agent", "ask help"),
        ("agent", "it is two <b>"),
    ]
    looked, question, _ = document.steps[2:]
    assert looked.tool_calls is not None and looked.observation is not None
    assert looked.reasoning_content == "look"
    assert looked.observation.results[0].source_call_id == looked.tool_calls[0].tool_call_id == "call_s0_0"
    assert looked.observation.results[0].content == "a b"
    assert document.agent.tool_definitions == TALK[0][3][0]["tools"]
    others = document.subagent_trajectories or []
    relations = [(other.extra or {})["penstock"]["relation"] for other in others]
    assert relations == ["agent", "rewrite", "sibling"]
    assert question.observation is not None
    refs = [
        result.subagent_trajectory_ref
        for result in question.observation.results
        if result.subagent_trajectory_ref
    ]
    assert [ref[0].trajectory_id for ref in refs] == [others[0].trajectory_id, others[2].trajectory_id]
    helper, rewritten, sibling = others
    assert [(step.source, step.message) for step in helper.steps] == [("user", "you help"), ("agent", "two")]
    assert [(step.message, step.is_copied_context) for step in rewritten.steps] == [
        ("be brief", True),
        ("summary: two files", None),
        ("2", None),
    ]
    assert [step.is_copied_context for step in sibling.steps] == [True, True, True, True, None]


async def test_the_reward_of_a_rollout_and_its_train_steps_are_written(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await exported_run.export(Atif(prompt_ids=False), tmp_path / "out")
    found = [(document.extra or {})["penstock"] for document in documents(tmp_path / "out")]
    assert [about["reward"]["performance"] for about in found] == [1.0, 0.0, 0.0, 0.0] * 3
    assert [about["batch"]["version"] if about["batch"] else None for about in found] == [1] * 8 + [None] * 4
    assert all(about["verdict"]["tests"][0]["name"] == "test_answer" for about in found)
    assert "prompt_token_ids" not in next((tmp_path / "out").glob("trajectories/*/*.json")).read_text()


async def test_a_marked_step_has_no_train_weight(exported_run: ExportedRun, tmp_path: Path) -> None:
    await exported_run.export(Atif(), tmp_path / "out", groups=(1,))
    for file in (tmp_path / "out").glob("trajectories/*/*.json"):
        (helper, *_) = json.loads(file.read_bytes())["subagent_trajectories"]
        about = helper["steps"][-1]["metrics"]["extra"]["penstock"]
        assert (about["marks"], about["train_weight"]) == (["auxiliary"], 0)
