"""An option that has no effect as the others are is refused, and the table of such options names real ones."""

import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.combinations import COMBINATIONS
from orchestrator.cli.main import app

RUNNER = CliRunner()
ROOT: Any = typer.main.get_command(app)


def sentence_of(words: str) -> str:
    """Standard error of wrong usage, in one line."""
    done = RUNNER.invoke(app, shlex.split(words), env={"COLUMNS": "200"})
    assert done.exit_code == 2, done
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "option", "sentence"),
    [
        ("doctor --provider nosuch", "--provider", "without --cluster or --sandbox"),
        ("doctor --provider nosuch -c runs/a --json", "--provider", "without --cluster or --sandbox"),
        ("doctor --cluster --sandbox", "--sandbox", "with --cluster"),
        ("doctor topology.toml", "topology", "without --cluster"),
        ("doctor --sandbox topology.toml", "topology", "without --cluster"),
        ("doctor --monitor http://a:1", "--monitor", "without --cluster"),
        ("doctor --write-probe", "--write-probe", "without --cluster"),
        ("doctor --read-probe a", "--read-probe", "without --cluster"),
        ("doctor --cluster --write-probe t.toml", "topology", "with --write-probe"),
        ("doctor --cluster --write-probe --json", "--json", "with --write-probe"),
        ("doctor --cluster --write-probe --monitor http://a:1", "--monitor", "with --write-probe"),
        ("doctor --cluster --write-probe --provider local", "--provider", "with --write-probe"),
        ("doctor --cluster --write-probe --read-probe a", "--read-probe", "with --write-probe"),
        ("doctor --cluster --read-probe a --json", "--json", "with --read-probe"),
        ("show rollout 7 --tokens", "--tokens", "without --step"),
        ("show rollout 7 --html f --step 0", "--step", "with --html"),
        ("show rollout 7 --html f --full", "--full", "with --html"),
        ("show rollout 7 --html f --json", "--json", "with --html"),
        ("sft record --out x -c runs/a --model m", "--model", "with --config: the run that --config names"),
        ("sft record --out x -c runs/a --slots 4", "--slots", "with --config: the run that --config names"),
        ("sft record --out x -c runs/a --sandbox local", "--sandbox", "with --config: the run that"),
        ("scale t.toml runners=3 --out D", "--out", "without --target"),
        ("scale t.toml runners=3 -c runs/a", "--config", "without --target"),
        ("show group 7 --full --json", "--full", "with --json: JSON is never shortened"),
        ("show batch 7 --full --json", "--full", "with --json: JSON is never shortened"),
        ("tasks import swe rows.jsonl --to x --git-timeout-s 5", "--git-timeout-s", "without --repositories"),
        ("drain server http://a:1 --undo --yes", "--yes", "with --undo"),
        ("run mix --reason why", "--reason", "without DOMAIN=WEIGHT… or --configured"),
        ("run mix --yes", "--yes", "without DOMAIN=WEIGHT… or --configured"),
    ],
)
def test_an_option_without_an_effect_is_refused_by_name(words: str, option: str, sentence: str) -> None:
    found = sentence_of(words)
    assert f"'{option}'" in found.replace(f"'[{option.upper()}]'", f"'{option}'")
    assert f": it has no effect {sentence}" in found


@pytest.mark.parametrize("name", sorted(COMBINATIONS))
def test_the_table_names_the_parameters_of_a_command_each_once_per_combination(name: str) -> None:
    command = ROOT
    for word in name.split():
        command = command.commands[word]
    known = {param.name for param in command.params}
    for each in COMBINATIONS[name]:
        assert {each.param, *each.needs, *each.against} <= known
        assert bool(each.needs) != bool(each.against)
