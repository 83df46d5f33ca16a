"""r_t = α·process + β·speed + performance, with every component kept."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.rewards.composite import Outcome, group_rewards
from orchestrator.rewards.process import ParsedAction
from orchestrator.rewards.settings import RewardSettings, check_rewards

GOOD, BAD = ParsedAction(content="7"), ParsedAction(content="<call", parse="ill_formed")
DEFAULT = RewardSettings()


def test_a_group_of_three_gets_the_numbers_worked_out_by_hand() -> None:
    """T_base of the two successes is the other one's time: h = 1/(1+20/10) = 1/3 and 1/(1+10/20) = 2/3."""
    rewards = group_rewards(
        [
            Outcome(0, 1.0, 20.0, [GOOD, BAD, GOOD, GOOD]),
            Outcome(2, 0.5, 10.0, [GOOD]),
            Outcome(3, 0.0, 1.0, [BAD, BAD]),
        ],
        DEFAULT,
    )
    assert [[step.reward for step in reward.steps] for reward in rewards] == [
        [0.0, pytest.approx(-0.025), 0.0, pytest.approx(1 + 0.1 / 3)],
        [pytest.approx(0.5 + 0.2 / 3)],
        [pytest.approx(-0.05), pytest.approx(-0.05)],
    ]
    assert [reward.total for reward in rewards] == pytest.approx([1 - 0.025 + 0.1 / 3, 0.5 + 0.2 / 3, -0.1])
    assert [reward.member for reward in rewards] == [0, 2, 3]


def test_speed_and_performance_are_paid_once_on_the_last_step() -> None:
    steps = group_rewards([Outcome(0, 1.0, 5.0, [GOOD] * 5)], DEFAULT, reference_s=5.0)[0].steps
    assert [(step.performance, step.speed) for step in steps] == [(0.0, 0.0)] * 4 + [(1.0, 0.5)]


def test_the_longest_rollout_loses_no_more_to_process_than_the_shortest() -> None:
    rewards = group_rewards([Outcome(n, 0.0, 1.0, [BAD] * n) for n in (1, 3, 200)], DEFAULT)
    assert [reward.total for reward in rewards] == pytest.approx([-0.1] * 3)


def test_a_marked_step_keeps_its_reward_and_loses_its_train_weight() -> None:
    marked = group_rewards([Outcome(0, 1.0, 5.0, [GOOD, BAD, GOOD], marked={1})], DEFAULT)[0]
    plain = group_rewards([Outcome(0, 1.0, 5.0, [GOOD, BAD, GOOD])], DEFAULT)[0]
    assert [step.weight for step in marked.steps] == [1, 0, 1]
    assert [replace(step, weight=1) for step in marked.steps] == list(plain.steps)
    assert marked.total == plain.total


def test_a_rollout_without_steps_has_its_outcome_as_total() -> None:
    reward = group_rewards([Outcome(0, 1.0, 5.0, [])], DEFAULT, reference_s=5.0)[0]
    assert reward.steps == () and reward.total == 1.05


@given(
    st.lists(st.sampled_from([GOOD, BAD, ParsedAction()]), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1e4),
)
def test_stored_components_explain_every_reward(
    actions: list[ParsedAction], performance: float, t: float
) -> None:
    reward = group_rewards([Outcome(0, performance, t, actions)], DEFAULT, reference_s=10.0)[0]
    for step in reward.steps:
        assert step.reward == step.alpha * step.process.value + step.beta * step.speed + step.performance
        assert step.process.value == max(-1.0, sum(value for _, value in step.process.signals))
        assert step.alpha == 0.1 / len(actions) and step.beta == 0.1
    assert -0.1 - 1e-9 <= reward.total <= 1.1
    assert reward.total == pytest.approx(sum(step.reward for step in reward.steps))


@pytest.mark.parametrize("performance", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_performance_outside_zero_to_one_is_refused(performance: float) -> None:
    with pytest.raises(ValueError, match=r"performance of member 4 .* not in \[0, 1\]"):
        group_rewards([Outcome(4, performance, 1.0, [GOOD])], DEFAULT)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"process_weight": -1.0}, "process_weight is -1.0"),
        ({"speed_weight": float("nan")}, "speed_weight is nan"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"zero_signal": "luck"}, "'luck' is unknown; known: performance, returns"),
        (
            {"signals": ("politeness",)},
            "'politeness' is unknown; known: ill_formed_tool_call, language_mixing, ",
        ),
        ({"zero_signal": "returns", "advantage_std": True}, "advantage_std divides by the spread"),
    ],
    ids=lambda x: str(x),
)
def test_settings_that_cannot_be_meant_are_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    check_rewards(DEFAULT)
    with pytest.raises(ConfigurationError, match=sentence):
        check_rewards(replace(DEFAULT, **change))  # type: ignore[arg-type]
