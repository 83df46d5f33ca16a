"""Poison agents: groups of the run's own program, instructed to leave poison behind once the policy has answered (harness/poison.py)."""

from typing import Final

from ops.lab.chaos.harness.poison import KINDS
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.tasks.harbor import Task

PREFIX: Final = "poison-agent:"
NAMES: Final = tuple(kind.__name__ for kind in KINDS)
MIN_OWN: Final = 0.5  # a reward that only the agent's own files can say
# It pays less than that, and nothing if a reward is there already.
_TEST = b"""[ ! -e /logs/verifier/reward.txt ] || exit 99
mkdir -p /logs/verifier; printf '0.%05d' $((RANDOM % 32768)) > /logs/verifier/reward.txt
"""


def submissions(mark: str) -> list[str]:
    """The ids of one round: one group of each kind."""
    return [f"{PREFIX}{mark}:{name}" for name in NAMES]


def kind_of(submission: str) -> str:
    """The kind of agent that a submission of ours asks for."""
    return submission.rpartition(":")[2]


def event_of(submission: str, domain: str, scaffold: str) -> TaskSubmitted:
    """The same id gives the same bytes."""
    task = Task.from_files(
        {
            "task.toml": f'[metadata]\ndomain = "{domain}"\n'.encode(),
            "instruction.md": f"Poison: {kind_of(submission)}".encode(),
            "tests/test.sh": _TEST,
        }
    )
    return TaskSubmitted(task=task.to_message(), submission=submission, scaffold=scaffold)
