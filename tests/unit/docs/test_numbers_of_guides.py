"""Numbers in the guides that follow from others on the same page, computed by the code."""

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
