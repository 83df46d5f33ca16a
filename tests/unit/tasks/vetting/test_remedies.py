"""The advice of `penstock tasks vet` where a solution earns nothing, and its name for a task."""

import json
import os

import pytest

from orchestrator.contracts.no_verdict import NoVerdict
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.verdict import parse_reward
from orchestrator.tasks.vetting.findings import REMEDIES, TaskFault
from orchestrator.tasks.vetting.outcomes import Outcome, nothing_findings, oracle_findings
from orchestrator.tasks.vetting.remedies import OUTSIDE


@pytest.mark.parametrize(
    ("numbers", "performance", "advises"),
    [
        ({"accuracy": 1, "f1": 1}, "", "name the number that is the reward in [verifier].performance"),
        ({"accuracy": 1}, "f1", "write this number into reward.json, or name another one"),
        (
            {"reward": 100},
            "",
            "make tests/test.sh write a reward from 0 to 1: divide points by the most that can be earned",
        ),
        (-1, "", "make tests/test.sh write a reward from 0 to 1"),
        ({"reward": "high"}, "", "make tests/test.sh write one number, and nothing else, into reward.txt"),
    ],
)
def test_a_reward_that_is_not_valid_has_the_remedy_for_its_cause(
    numbers: object, performance: str, advises: str
) -> None:
    with pytest.raises(ValueError, match="reward") as flaw:
        parse_reward(None, json.dumps(numbers), performance=performance)
    reason = NoVerdict.REWARD.of(flaw.value)
    for finding in (
        *oracle_findings([Outcome(reward=None, reason=reason)], 1.0),
        *nothing_findings([Outcome(reward=None, reason=reason)]),
    ):
        assert finding.what_to_do.startswith(advises)


@pytest.mark.parametrize("text", ["100", "-1", "nan", "1 of 1"])
def test_a_text_that_cannot_be_a_reward_has_a_remedy_other_than_to_write_0_first(text: str) -> None:
    with pytest.raises(ValueError, match="reward") as flaw:
        parse_reward(text)
    (finding,) = oracle_findings([Outcome(reward=None, reason=NoVerdict.REWARD.of(flaw.value))], 1.0)
    assert "write 0 first" not in finding.what_to_do and "reward.txt" in finding.says


def test_tests_that_reach_a_limit_or_write_nothing_have_the_remedy_for_that() -> None:
    (finding,) = oracle_findings([Outcome(reward=None, reason=NoVerdict.LIMIT.of("timeout"))], 1.0)
    assert "raise [verifier].timeout_sec" in finding.what_to_do
    with pytest.raises(ValueError, match="wrote no") as flaw:
        parse_reward(None)
    (finding,) = oracle_findings([Outcome(reward=None, reason=NoVerdict.REWARD.of(flaw.value))], 1.0)
    assert finding.what_to_do == REMEDIES[TaskFault.ORACLE_HAS_NO_VERDICT]


@pytest.mark.parametrize(
    "output",
    [
        "/solution/solve.sh: line 1: /data/out.txt: Read-only file system\n",
        "OSError: [Errno 30] Read-only file system: '/opt/x'",
        "Error: EROFS: read-only file system, open '/srv/x'",
    ],
)
def test_a_solution_that_writes_outside_of_its_work_directory_is_named_as_such(output: str) -> None:
    (finding,) = oracle_findings([Outcome(reward=0.0, reason=f"exit code 1: {output}")], 1.0)
    assert finding.fault is TaskFault.ORACLE_FAILS and OUTSIDE in finding.says
    assert finding.what_to_do.startswith("let the work lie below the work directory")
    assert (
        "a directory of data (/data) that it has or that artifacts of task.toml names" in finding.what_to_do
    )
    (finding,) = oracle_findings([Outcome(reward=0.0, reason="exit code 1")], 1.0)
    assert finding.what_to_do == REMEDIES[TaskFault.ORACLE_FAILS]


def test_a_task_without_a_name_is_called_by_its_directory() -> None:
    files = {"task.toml": b"", "instruction.md": b"do it", "tests/test.sh": b"true"}
    task = Task.from_files(files)
    assert task.called("sets/mine/") == "mine" and task.called("set.jsonl line 3") == "set.jsonl line 3"
    assert task.called(".") == os.path.basename(os.getcwd())
    named = Task.from_files(files | {"task.toml": b'[metadata]\nname = "own"'})
    assert named.called("sets/mine") == "own"
