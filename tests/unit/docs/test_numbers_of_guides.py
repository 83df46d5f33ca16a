"""Numbers in the guides that follow from others on the same page, computed by the code."""

import re

import pytest

from orchestrator.rewards.composite import RolloutReward
from orchestrator.rewards.returns import group_advantages
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.speed import Speed
from tests.guides import PAGES


def test_the_advantages_in_concepts_are_those_of_its_rewards() -> None:
    _, _, table = PAGES["ops/guides/concepts.md"].partition("performance  reward   advantage  tests\n")
    rows = [line.split() for line in table.partition("```")[0].splitlines()]
    group = [
        RolloutReward(
            member=member,
            performance=float(row[4]),
            speed=Speed(agent_s=1.0),
            steps=(),
            total=float(row[5]),
        )
        for member, row in enumerate(rows)
    ]
    found = group_advantages(group, RewardSettings())
    assert len(found) == 4
    assert [(each.rollout_return - each.baseline) / each.divisor for each in found] == pytest.approx(
        [float(row[6]) for row in rows], abs=6e-6
    )


@pytest.mark.parametrize(
    ("page", "before"),
    [
        ("ops/guides/operate.md", "as a monitor."),
        ("ops/guides/why-is-it-stuck.md", "| exit status | meaning |"),
        ("ops/guides/command-line.md", "| exit status | meaning |"),
    ],
)
def test_every_page_about_penstock_status_as_a_monitor_has_all_its_exit_statuses(
    page: str, before: str
) -> None:
    _, found, text = PAGES[page].partition(before)
    assert found and set(re.findall(r"\b[0134]\b", text.partition("\n\n")[0])) >= {"0", "1", "3", "4"}
