"""Policies by name."""

import re
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.queue_policies import BUILT_IN, Greedy, Windowed, queue_policy
from orchestrator.scheduling.window import QueueRow
from orchestrator.settings.config import Config, QueueSection

ROWS = [
    QueueRow(3, GroupState.READY),
    QueueRow(4, GroupState.DISPATCHED),
    QueueRow(5, GroupState.READY),
    QueueRow(9, GroupState.READY),
]


TAKEN = {"fifo": [3], "windowed": [3, 5], "greedy": [3, 5, 9]}


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_policy_takes_its_own_share_of_the_same_rows(name: str) -> None:
    policy = queue_policy(name, capacity=8, fraction=0.5)
    needed = policy.rows_needed(8)
    assert name in TAKEN, f"{name}: write what it takes of ROWS into TAKEN"
    assert policy.takeable(ROWS, 8) == policy.takeable(ROWS[:needed], 8) == TAKEN[name]


def test_the_key_names_each_built_in_policy() -> None:
    says = QueueSection.model_fields["policy"].description or ""
    assert [name for name in BUILT_IN if not re.search(rf"\b{name}\b", says)] == [], (
        "name them in the sentence of queue.policy in orchestrator/settings/config.py"
    )


def test_the_windowed_policy_has_a_window_of_the_fraction() -> None:
    assert queue_policy("windowed", 20, 0.3) == Windowed(6)
    assert queue_policy("fifo", 20, 0.3) == Windowed(1)
    assert queue_policy("greedy", 20, 0.3) == Greedy()


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_window_that_is_shown_and_stored_is_the_policys(name: str) -> None:
    for capacity, fraction in ((24, 0.3), (1, 0.5), (100, 0.29), (8, 1.0)):
        policy = queue_policy(name, capacity, fraction)
        expected = policy.window if isinstance(policy, Windowed) else capacity
        section = {"policy": name, "capacity": capacity, "window_fraction": fraction, "batch_groups": 1}
        settings = QueueSettings(
            policy=name,
            capacity=capacity,
            window_fraction=fraction,
            batch_groups=1,
            group_size=2,
            max_staleness=1,
            running_rollouts=8,
        )
        stored = Config.model_validate({"queue": section}).to_json()["queue"]["window"]
        assert stored == settings.window == expected


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'lifo' is unknown; known: .*fifo.*greedy.*windowed"):
        queue_policy("lifo", 8, 0.3)


def test_a_third_party_registers_a_policy_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "newest_first-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: newest-first\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[penstock.policies]\nnewest = newest_first:make\n")
    (tmp_path / "newest_first.py").write_text(
        "class Newest:\n"
        "    def rows_needed(self, wanted): return None\n"
        "    def takeable(self, rows, wanted): return [r.seq for r in rows if r.state == 'ready'][::-1][:wanted]\n"
        "def make(capacity, fraction): return Newest()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert queue_policy("newest", 8, 0.3).takeable(ROWS, 2) == [9, 5]
