"""The noise of speed is measured exactly when a gate of the rewards reads it."""

from itertools import product

import pytest

from orchestrator.contracts.choices import ZeroSignal
from orchestrator.rewards.actions import ParsedAction, RecordedStep
from orchestrator.rewards.comparison import compared
from orchestrator.rewards.composite import VerifiedMember, group_rewards
from orchestrator.rewards.settings import RewardSettings
from orchestrator.settings.config import Config

GROUPS = [
    [(1.0, 5.0), (1.0, 500.0)],
    [(0.9, 5.0), (0.95, 500.0)],
    [(0.9, 500.0), (0.95, 5.0)],
    [(0.0, 5.0), (1.0, 9.0)],
]
"""Performance and seconds of each member."""


@pytest.mark.parametrize(
    ("zero_signal", "advantage_std", "speed_weight"), [*product(ZeroSignal, (False, True), (0.0, 0.1, 1.0))]
)
def test_the_noise_is_measured_if_a_group_may_wait_for_it(
    zero_signal: ZeroSignal, advantage_std: bool, speed_weight: float
) -> None:
    section = {"zero_signal": zero_signal, "advantage_std": advantage_std, "speed_weight": speed_weight}
    config = Config.model_validate({"reward": section})
    settings = RewardSettings.of(config.reward)

    def silent(members: list[tuple[float, float]], noise: float | None) -> bool:
        outcomes = [
            VerifiedMember(
                member=i, performance=performance, agent_s=t, steps=[RecordedStep(ParsedAction(content="7"))]
            )
            for i, (performance, t) in enumerate(members)
        ]
        return compared(group_rewards(outcomes, settings), settings, noise).silent is not None

    waits = [members for members in GROUPS if silent(members, None) and not silent(members, 0.01)]
    assert config.reward.measures_noise is bool(waits)
