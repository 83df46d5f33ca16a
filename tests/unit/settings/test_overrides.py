"""`--set`: values in place of the file's."""

from pathlib import Path

import pytest

from orchestrator.settings.config import load
from tests.unit.settings.config_rig import refusal, written


def test_overrides_are_toml_values_or_bare_words_and_the_last_one_wins(tmp_path: Path) -> None:
    file = written(tmp_path, "[queue]\ncapacity = 10\n")
    config = load(
        file,
        [
            "queue.capacity=12",
            "queue.capacity = 16",
            "run.name=other",
            "trainer.lr=1e-4",
            "rollout.train_timeouts=true",
            "stage.domains={coding = 2.0}",
            "servers.urls=['http://127.0.0.1:1']",
        ],
    )
    assert (config.queue.capacity, config.run.name, config.trainer.lr) == (16, "other", 1e-4)
    assert config.rollout.train_timeouts and config.stage.domains == {"coding": 2.0}
    assert config.servers.urls == ["http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("queue.capacity", "is not of the form section.key=value"),
        (".capacity=3", "is not of the form section.key=value"),
        ("queue.size=3", "override queue.size=3: queue.size is not a known key"),
        ("quue.size=3", "override quue.size=3: quue is not a known key: did you mean queue?"),
        (
            "trainer.learning_rate=1",
            "override trainer.learning_rate=1: trainer.learning_rate is not a known key: did you mean lr? (known: ",
        ),
        ("queue.capacity.x=3", "queue.capacity: must be a whole number"),
        ("queue.capacity=some", "queue.capacity: must be a whole number"),
        ("run.name=UPPER", "override run.name=UPPER: run.name: run 'UPPER' is not a valid name"),
    ],
)
def test_an_override_that_fits_nowhere_is_named(tmp_path: Path, override: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, "", override)


def test_a_wrong_key_of_the_file_is_reported_by_the_file_even_if_an_override_is_wrong_too(
    tmp_path: Path,
) -> None:
    sentence = refusal(tmp_path, "[queue]\ncapacitee = 3\n", "trainer.lr=fast")
    assert sentence.startswith(
        f"{tmp_path / 'penstock.toml'}: queue.capacitee is not a known key: did you mean capacity?"
    )
    assert "; override trainer.lr=fast: trainer.lr: must be a number" in sentence
    assert " more); " in sentence


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    assert "capacity is a value, not a section" in refusal(
        tmp_path, "[queue]\ncapacity = 10\n", "queue.capacity.x=3"
    )


def test_an_override_of_a_scaffold_by_its_path_replaces_the_value_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, '[rollout]\nscaffolds = { "own/agent" = 1.0, shell = 1.0 }\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load(file, ['rollout.scaffolds."../own/agent"=0.5'])
    assert config.rollout.scaffolds == {str(tmp_path / "own/agent"): 0.5, "shell": 1.0}
    sentence = refusal(tmp_path, "", 'rollout.scaffolds."own/agent"=x')
    assert sentence.startswith('override rollout.scaffolds."own/agent"=x: rollout.scaffolds.')
    twice = refusal(tmp_path, "", 'rollout.scaffolds={"own/a"=1, "./own/a"=2}')
    assert "are the same directory: keep one of them" in twice


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sandbox={processes=100}", "sandbox is a section: give its keys one at a time, as in --set sandbox.processes=…"),
        ("sandbox={}", "sandbox is a section: give its keys one at a time"),
        ("sandbox.container={cpus=2}", "sandbox.container is a section: "),
        ("reward.process.mine={weight=1}", "reward.process.mine is a section: "),
    ],
)  # fmt: skip
def test_a_table_in_the_place_of_a_section_is_refused(tmp_path: Path, override: str, words: str) -> None:
    assert words in refusal(tmp_path, "[sandbox]\nmemory_mb = 9999\n", override)


def test_a_table_of_names_that_people_choose_is_one_value(tmp_path: Path) -> None:
    file = written(tmp_path, "[stage]\ndomains = { coding = 1.0, maths = 1.0 }\n")
    assert load(file, ["stage.domains={coding=2}"]).stage.domains == {"coding": 2}
    assert load(file, ["stage.limits={coding={max_turns=5}}"]).stage.limits["coding"].max_turns == 5
