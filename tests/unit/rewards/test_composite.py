"""r_t = α·process + β·speed + performance, with every component kept."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.choices import SignalSource, ZeroSignal
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.marks import ParseStatus
from orchestrator.rewards.actions import ParsedAction, RecordedStep
from orchestrator.rewards.composite import VerifiedMember, group_rewards
from orchestrator.rewards.settings import RewardSettings, check_rewards
from orchestrator.settings.reward import PROCESS, ProcessSignal

GOOD = RecordedStep(ParsedAction(content="7"))
BAD = RecordedStep(ParsedAction(content="<call", parse=ParseStatus.ILL_FORMED))
DEFAULT = RewardSettings()


def test_a_group_of_three_gets_the_numbers_worked_out_by_hand() -> None:
    """T_base of the two successes is the other one's time: h = 1/(1+20/10) = 1/3 and half of 1/(1+10/20) = 2/3, for half the performance."""
    rewards = group_rewards(
        [
            VerifiedMember(member=0, performance=1.0, agent_s=20.0, steps=[GOOD, BAD, GOOD, GOOD]),
            VerifiedMember(member=2, performance=0.5, agent_s=10.0, steps=[GOOD]),
            VerifiedMember(member=3, performance=0.0, agent_s=1.0, steps=[BAD, BAD]),
        ],
        DEFAULT,
    )
    assert [[step.reward for step in reward.steps] for reward in rewards] == [
        [0.0, pytest.approx(-0.02), 0.0, pytest.approx(1 + 0.1 / 3)],
        [pytest.approx(0.5 + 0.1 / 3)],
        [pytest.approx(-0.02), pytest.approx(-0.02)],
    ]
    assert [reward.total for reward in rewards] == pytest.approx([1 - 0.02 + 0.1 / 3, 0.5 + 0.1 / 3, -0.04])
    assert [reward.member for reward in rewards] == [0, 2, 3]


def test_speed_and_performance_are_paid_once_on_the_last_step() -> None:
    steps = group_rewards(
        [VerifiedMember(member=0, performance=1.0, agent_s=5.0, steps=[GOOD] * 5)], DEFAULT, reference_s=5.0
    )[0].steps
    assert [(step.performance, step.speed) for step in steps] == [(0.0, 0.0)] * 4 + [(1.0, 0.5)]


@given(st.floats(0, 1), st.floats(1e-3, 1e5), st.floats(1e-2, 1e4))
def test_what_speed_pays_is_proportional_to_performance(performance: float, t: float, base: float) -> None:
    part, whole = group_rewards(
        [
            VerifiedMember(member=0, performance=performance, agent_s=t, steps=[GOOD]),
            VerifiedMember(member=1, performance=1.0, agent_s=t, steps=[GOOD]),
        ],
        DEFAULT,
        reference_s=base,
    )
    assert part.speed.bonus == pytest.approx(performance * whole.speed.bonus)


def test_a_hundredth_of_the_work_in_no_time_earns_a_hundredth_of_the_bonus() -> None:
    fast, slow = group_rewards(
        [
            VerifiedMember(member=0, performance=0.01, agent_s=0.001, steps=[GOOD]),
            VerifiedMember(member=1, performance=1.0, agent_s=500.0, steps=[GOOD]),
        ],
        DEFAULT,
        10.0,
    )
    assert DEFAULT.speed_weight * fast.speed.bonus <= 0.001 and slow.total > fast.total


def test_one_ill_formed_call_costs_the_same_in_the_first_and_in_the_thousandth_step() -> None:
    short, long = group_rewards(
        [
            VerifiedMember(member=0, performance=0.0, agent_s=1.0, steps=[BAD]),
            VerifiedMember(member=1, performance=0.0, agent_s=1.0, steps=[GOOD] * 999 + [BAD]),
        ],
        DEFAULT,
    )
    assert short.total == long.total == pytest.approx(-0.02)


def test_process_moves_a_rollout_by_no_more_than_its_cap_however_long_it_is() -> None:
    rewards = group_rewards(
        [VerifiedMember(member=n, performance=0.0, agent_s=1.0, steps=[BAD] * n) for n in (1, 10, 500)],
        DEFAULT,
    )
    assert [reward.total for reward in rewards] == pytest.approx([-0.02, -0.2, -0.2])
    assert [reward.alpha for reward in rewards] == pytest.approx([1, 1, 0.02])


def test_a_marked_step_has_no_train_weight_and_costs_nothing() -> None:
    steps, clean = [GOOD, BAD, BAD, GOOD], [GOOD, BAD, GOOD]
    marked, plain = group_rewards(
        [
            VerifiedMember(member=0, performance=1.0, agent_s=5.0, steps=steps, marked={1}),
            VerifiedMember(member=1, performance=1.0, agent_s=5.0, steps=clean),
        ],
        DEFAULT,
    )
    assert [step.weight for step in marked.steps] == [1, 0, 1, 1]
    assert [step.reward for step in marked.steps] == pytest.approx([0.0, 0.0, -0.02, 1.05])
    assert marked.total == plain.total and marked.by_signal == plain.by_signal


def test_the_outcome_is_paid_on_the_last_step_though_it_has_a_mark() -> None:
    [reward] = group_rewards(
        [VerifiedMember(member=0, performance=1.0, agent_s=5.0, steps=[GOOD, BAD], marked={1})], DEFAULT
    )
    assert [(step.reward, step.weight) for step in reward.steps] == [(0.0, 1), (pytest.approx(1.05), 0)]


def test_a_rollout_without_steps_has_its_outcome_as_total() -> None:
    reward = group_rewards(
        [VerifiedMember(member=0, performance=1.0, agent_s=5.0, steps=[])], DEFAULT, reference_s=5.0
    )[0]
    assert reward.steps == () and reward.total == 1.05


@given(
    st.lists(st.sampled_from([GOOD, BAD, RecordedStep(ParsedAction())]), min_size=1, max_size=40),
    st.floats(0, 1),
    st.floats(0, 1e4),
)
def test_stored_components_explain_every_reward(
    steps: list[RecordedStep], performance: float, t: float
) -> None:
    reward = group_rewards(
        [VerifiedMember(member=0, performance=performance, agent_s=t, steps=steps)], DEFAULT, reference_s=10.0
    )[0]
    for step in reward.steps:
        assert step.reward == step.alpha * step.process.value + step.beta * step.speed + step.performance
        weighed = sum((value or 0) * DEFAULT.process[name].weight for name, value in step.process.signals)
        assert step.process.value == pytest.approx(weighed) and step.beta == 0.1
    assert -0.2 - 1e-9 <= reward.total <= 1.3
    assert reward.total == pytest.approx(sum(step.reward for step in reward.steps))
    paid = sum(step.alpha * step.process.value for step in reward.steps)
    assert sum(reward.by_signal.values()) == pytest.approx(paid) and abs(paid) <= 0.2 + 1e-9


@pytest.mark.parametrize("performance", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_performance_outside_zero_to_one_is_refused(performance: float) -> None:
    with pytest.raises(ValueError, match=r"performance of member 4 .* not in \[0, 1\]"):
        group_rewards([VerifiedMember(member=4, performance=performance, agent_s=1.0, steps=[GOOD])], DEFAULT)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"process_cap": -1.0}, "process_cap is -1.0"),
        ({"speed_weight": float("nan")}, "speed_weight is nan"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        (
            {"advantage_std": True, "gamma": 0.99},
            "advantage_std .* with gamma = 0.99 .* gamma = 1, or with batch_scale",
        ),
        ({"zero_signal": "luck"}, "'luck' is unknown; known: performance, returns"),
        (
            {"process": {"politeness": ProcessSignal()}},
            "'politeness' is unknown; known: ill_formed_tool_call, language_mixing, ",
        ),
    ],
    ids=lambda x: str(x)[:30],
)
def test_settings_that_cannot_be_meant_are_refused_in_one_sentence(
    change: dict[str, object], sentence: str
) -> None:
    check_rewards(DEFAULT)
    check_rewards(replace(DEFAULT, advantage_std=True, zero_signal=ZeroSignal.RETURNS))
    named = {**PROCESS, "tests_first": ProcessSignal(source=SignalSource.VERIFIER)}
    check_rewards(replace(DEFAULT, process=named))
    with pytest.raises(ConfigurationError, match=sentence):
        check_rewards(replace(DEFAULT, **change))  # type: ignore[arg-type]
