"""`./ops/test --tier chaos`, by hand and in `.ci/run`: each of its options reaches the command once, which refuses one that is given twice."""

import re
import subprocess
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand
from typer.main import get_command

from ops import tiers
from ops.lab.chaos.main import main
from orchestrator.cli.arguments import checked

REPOSITORY = Path(__file__).resolve().parents[3]
FUNCTION = re.search(r"^chaos\(\) \{\n(?:.*\n)*?\}$", (REPOSITORY / "ops/test").read_text(), re.M)
OF_THE_GATE = tiers.read(REPOSITORY / "ops/tiers.toml").tiers["chaos"].gate


def words_of(given: list[str], place: Path) -> list[str]:
    """The words with which the tier calls `ops/chaos`."""
    program = place / "ops/chaos"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\n')
    program.chmod(0o755)
    assert FUNCTION
    script = f'{FUNCTION[0]}\nchaos "$@"'
    subprocess.run(["bash", "-euc", script, "bash", *given], cwd=place, check=True, capture_output=True)
    return (place / "words").read_text().split()


def command() -> TyperCommand:
    app = typer.Typer(add_completion=False)
    app.command()(main)
    checked(app)
    made = get_command(app)
    assert isinstance(made, TyperCommand)
    return made


@pytest.mark.parametrize(
    ("given", "kills", "least", "seed"),
    [
        ([], 30, 60, 7),
        (OF_THE_GATE.split(), 12, 25, 7),
        (["--kills", "3", "--least", "5", "--seed", "9"], 3, 5, 9),
    ],
    ids=["by hand", "in the gate", "other ones"],
)
def test_the_command_takes_the_options_of_the_tier(
    given: list[str], kills: int, least: int, seed: int, tmp_path: Path
) -> None:
    with command().make_context("chaos", words_of(given, tmp_path)) as context:
        assert (context.params["kills"], context.params["least"], context.params["seed"]) == (
            kills,
            least,
            seed,
        )
