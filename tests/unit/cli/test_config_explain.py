"""`penstock config --explain` lists every key with its meaning, its default, its value and its scope."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import Config
from orchestrator.settings.keys import keys, value_of


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a run, and no services."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)
    return tmp_path


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments])


def test_every_key_is_listed_without_any_file() -> None:
    done = penstock("--explain", "--json")
    rows = json.loads(done.stdout)
    assert [row["key"] for row in rows] == [key.name for key in keys()] and len(rows) > 200
    assert all(row["meaning"].endswith(".") and "value" not in row for row in rows)


def test_a_file_gives_values_and_an_override_changes_one(elsewhere: Path) -> None:
    (elsewhere / "penstock.toml").write_text("[queue]\ncapacity = 40\n")
    [row] = json.loads(penstock("queue.capacity", "-c", ".", "--json").stdout)
    assert (row["value"], row["default"], row["type"], row["scope"]) == (40, 24, "integer", "run")
    [row] = json.loads(penstock("queue.capacity", "--set", "queue.capacity=50", "--json").stdout)
    assert row["value"] == 50


def test_each_value_says_where_it_comes_from(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/pool")
    (elsewhere / "penstock.toml").write_text("[queue]\ncapacity = 24\n[reward.process.mine]\nweight = 0.5\n")
    wanted = ("queue", "services", "reward.process")
    rows = json.loads(penstock(*wanted, "--set", "queue.group_size=3", "--json").stdout)
    origins = {row["key"]: row["from"] for row in rows}
    assert origins["queue.capacity"] == "file" and origins["queue.max_attempts"] == "default"
    assert origins["queue.group_size"] == "--set" and origins["reward.process.NAME.weight"] == "file"
    rows = json.loads(penstock("rollout.scaffolds", "--set", "rollout.scaffolds.shell=2", "--json").stdout)
    assert rows[0]["from"] == "--set"
    assert (origins["services.database_url"], origins["services.nats_url"]) == ("environment", "default")


def test_the_list_of_all_keys_has_readable_columns_and_one_key_its_whole_value(elsewhere: Path) -> None:
    difficulties = json.dumps([f"level-{n}" for n in range(30)])
    (elsewhere / "penstock.toml").write_text(f"[stage]\ndifficulties = {difficulties}\n")
    listed, whole = penstock("--explain", "-c", "."), penstock("stage.difficulties", "-c", ".")
    lines = listed.stdout.splitlines()
    assert lines[0].index("meaning") < 220
    assert "level-29" not in listed.stdout and "level-29" in whole.stdout


def test_a_key_without_effect_is_named_on_standard_error_and_an_unknown_process_is_refused(
    elsewhere: Path,
) -> None:
    (elsewhere / "penstock.toml").write_text("[trainer]\nlora_alpha = 7\n")
    done = penstock("-c", ".")
    assert json.loads(done.stdout)["trainer"]["lora_alpha"] == 7
    assert "penstock: trainer.lora_alpha has no effect: it needs trainer.lora_rank above 0" in done.stderr
    (elsewhere / "penstock.toml").write_text("[metrics]\nports = { trainers = 9101 }\n")
    refused = penstock("-c", ".")
    assert isinstance(refused.exception, ConfigurationError) and "'trainers'" in str(refused.exception)


def test_a_section_lists_its_keys_as_a_table() -> None:
    head, *lines = penstock("watchdog").stdout.splitlines()
    assert head.split() == ["key", "type", "default", "scope", "meaning"]
    assert [line.split()[0] for line in lines] == ["watchdog.no_progress_s", "watchdog.lag_s"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("trainer.learning_rate", "trainer.learning_rate is not a known key: did you mean trainer."),
        ("slots", "slots is not a known key: did you mean rollout.slots?"),
        ("zzz", "zzz is not a known key: `penstock config --explain` lists all keys"),
        ("rollout.remind_s", "rollout.remind_s is called rollout.reassign_after_s now"),
    ],
)
def test_an_unknown_key_is_one_sentence_with_the_nearest(wrong: str, sentence: str) -> None:
    done = penstock(wrong)
    assert done.exit_code != 0 and done.stdout == "" and str(done.exception).startswith(sentence)


def test_a_key_below_a_name_of_ones_own_is_found_and_has_the_value_of_each_name(elsewhere: Path) -> None:
    (elsewhere / "penstock.toml").write_text("[reward.process.mine]\nweight = 0.5\n")
    [row] = json.loads(penstock("reward.process.mine.weight", "--json").stdout)
    assert row["key"] == "reward.process.NAME.weight" and row["value"]["mine"] == 0.5


def test_the_value_of_every_key_of_the_defaults_is_its_default() -> None:
    for key in keys():
        if ".NAME." not in key.name:
            assert value_of(Config(), key.name) == key.default, key.name
