"""A run that began before a bound existed stays readable; only a new run, and a trainer of the old one, are refused."""

from typing import Any

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy import stack
from orchestrator.settings.config import Config, effective, ignored, load
from trainer.loop import check_config

OLDER: list[tuple[str, str, Any]] = [
    ("trainer", "eps", 1e-40),
    ("servers", "urls", ["http://h:1", "HTTP://H:1/"]),
    ("gateway", "urls", ["http://h:1", "http://h:1/"]),
    ("web", "hosts", ["http://h:1"]),
]


def stored_with(section: str, key: str, value: Any) -> dict[str, Any]:
    stored = Config().to_json()
    stored[section][key] = value
    return stored


@pytest.mark.parametrize(("section", "key", "value"), OLDER)
def test_a_stored_value_outside_of_a_newer_bound_is_read_and_a_new_one_is_refused(
    section: str, key: str, value: Any
) -> None:
    stored = stored_with(section, key, value)
    found = getattr(getattr(Config.from_json(stored), section), key)
    assert (list(found) if isinstance(value, list) else found) == value
    assert effective(stored, Config()).run.name == effective(stored, {}).run.name == Config().run.name
    assert ignored(stored, Config()) == ([f"{section}.{key}"] if section == "trainer" else [])
    with pytest.raises(ConfigurationError, match=rf"{section}\.{key}: "):
        load(None, [f"{section}.{key}={value}"])


def test_only_the_trainer_of_a_run_with_an_epsilon_that_rounds_to_zero_is_refused() -> None:
    config = effective(stored_with("trainer", "eps", 1e-40), Config())
    sentence = (
        "trainer.eps of this run is 1e-40, which float32 rounds to 0: begin a new run with 1e-37 or more"
    )
    for check in (check_config, lambda found: stack._check(found, [ProcessRole.TRAINER])):
        with pytest.raises(ConfigurationError) as refused:
            check(config)
        assert str(refused.value) == sentence
    stack._check(config, [ProcessRole.ORCHESTRATOR])
