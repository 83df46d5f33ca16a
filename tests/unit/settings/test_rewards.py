"""`[reward]`: signals next to their defaults, keys that were replaced, runs that started with them; numbers with the bounds of the data pool."""

import math
import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.contracts.numbers import INT2
from orchestrator.rewards.actions import ParsedAction, RecordedStep
from orchestrator.rewards.comparison import compared
from orchestrator.rewards.composite import VerifiedMember, group_rewards
from orchestrator.rewards.returns import group_advantages
from orchestrator.rewards.settings import RewardSettings
from orchestrator.settings.config import Config
from orchestrator.settings.reward import MAX_WEIGHT, PROCESS, ProcessSignal


def read(toml: str) -> Config:
    return Config.model_validate(tomllib.loads(toml))


def test_what_is_written_of_a_signal_changes_that_alone() -> None:
    found = read(
        "[reward.process.structured_reasoning]\nweight = 0.05\n[reward.process.mine]\nper = 'rollout'"
    ).reward.process
    assert (found["structured_reasoning"].weight, found["structured_reasoning"].per) == (0.05, "rollout")
    assert found["mine"].weight == 0.02
    assert {name: found[name] for name in PROCESS if name != "structured_reasoning"} == {
        name: signal for name, signal in PROCESS.items() if name != "structured_reasoning"
    }


@pytest.mark.parametrize("key", ["process_weight = 0.1", "signals = ['language_mixing']"])
def test_a_key_that_was_replaced_is_refused_with_the_new_ones(key: str) -> None:
    with pytest.raises(ValidationError, match=r"is not a key any more: write \[reward\.process\.NAME\]"):
        read(f"[reward]\n{key}")


@pytest.mark.parametrize(
    "toml",
    [
        "[reward.process.a]\nweight = -1",
        "[reward.process.a]\nweight = inf",
        "[reward.process.a]\nper = 'day'",
        "[reward.process.a]\nweigth = 1",
        "[reward]\nprocess_cap = nan",
        "[reward]\nprocess = 3",
    ],
)
def test_what_cannot_be_meant_of_a_signal_is_refused(toml: str) -> None:
    with pytest.raises(ValidationError):
        read(toml)


def test_a_run_that_began_with_one_weight_of_process_keeps_its_meaning() -> None:
    stored = Config().to_json()
    stored["reward"] = {"process_weight": 0.1, "speed_weight": 0.1, "zero_signal": "performance"}
    kept = Config.from_json(stored)
    settings = RewardSettings.of(kept.reward)
    assert {name for name, signal in settings.process.items() if signal.weight} == {
        "ill_formed_tool_call",
        "language_mixing",
        "reasoning_structure",
    }
    assert all(s.per == "rollout" and s.weight == 0.1 for s in settings.process.values() if s.weight)
    assert settings.process_cap == 0.1 and settings.zero_signal == "performance"
    assert Config.from_json(kept.to_json()) == kept


def test_a_signal_that_came_to_the_defaults_later_is_off_in_a_run_that_began_before() -> None:
    stored = Config().to_json()
    del stored["reward"]["process"]["repeated_calls"]
    assert Config.from_json(stored).reward.process["repeated_calls"].weight == 0
    assert Config.from_json(Config().to_json()) == Config()


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("reward.noise_replays", INT2),
        ("reward.speed_weight", MAX_WEIGHT),
        ("reward.process_cap", MAX_WEIGHT),
        ("reward.process.language_mixing.weight", MAX_WEIGHT),
        ("queue.group_size", INT2),
        ("queue.batch_groups", INT2),
        ("queue.max_attempts", 1000),
        ("trainer.parts", INT2),
    ],
)
def test_a_number_is_refused_that_the_data_pool_cannot_store_or_a_sum_cannot_hold(
    key: str, most: float
) -> None:
    def with_value(value: float) -> dict[str, Any]:
        nested: Any = value
        for name in reversed(key.split(".")):
            nested = {name: nested}
        raw: dict[str, Any] = nested
        raw.setdefault("queue", {}).setdefault("capacity", INT2)
        return raw

    Config.model_validate(with_value(most))
    for value in (most + 1, 2 * most, -1):
        with pytest.raises(ValidationError, match=key.replace(".", r"\.")):
            Config.model_validate(with_value(value))


def test_the_heaviest_signals_give_finite_rewards() -> None:
    process = {name: ProcessSignal(weight=MAX_WEIGHT) for name in PROCESS}
    settings = RewardSettings(process=process, process_cap=MAX_WEIGHT, speed_weight=MAX_WEIGHT)
    steps = [RecordedStep(ParsedAction(content="7"))] * 1000
    members = [VerifiedMember(member=i, performance=1.0, agent_s=10.0**i, steps=steps) for i in range(4)]
    rewards = group_rewards(members, settings)
    for member in group_advantages(rewards, settings):
        assert all(math.isfinite(step.advantage) for step in member.steps)
    assert math.isfinite(compared(rewards, settings, noise=0.1).sd_log_t or math.nan)
