"""`[reward]`: signals next to their defaults, keys that were replaced, runs that started with them."""

import tomllib

import pytest
from pydantic import ValidationError

from orchestrator.roles.complete import reward_settings
from orchestrator.settings.config import Config
from orchestrator.settings.reward import PROCESS


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
    settings = reward_settings(kept)
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
