"""An option that is given twice, or is empty, is refused before its command reads anything."""

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import main
from orchestrator.cli.arguments import _check_number
from orchestrator.cli.log_lines import since
from orchestrator.deploy.cluster.reading import EXAMPLES

APP: Any = sys.modules[main.__module__].app
ROOT: Any = typer.main.get_command(APP)
TOPOLOGY = str(Path(__file__).resolve().parents[3] / "ops/cluster/topology.toml")
TWICE = "it is given twice"
EMPTY = "it is empty"
NOT_TEXT = "it is not UTF-8 text (character"
BEFORE = "it stands before `penstock {}` and would be forgotten"


def refused(words: list[str]) -> str:
    """Standard error of wrong usage, in one line."""
    done = CliRunner().invoke(APP, words, env={"COLUMNS": "200"})
    assert done.exit_code == 2, done
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "option", "sentence"),
    [
        (["status", "-c", "runs/a", "-c", "runs/b"], "--config", TWICE),
        (["status", "-c", "runs/a", "--config=runs/a"], "--config", TWICE),
        (["eval", "--suite", "a", "--suite", "b"], "--suite", TWICE),
        (["cluster", "render", TOPOLOGY, "-t", "systemd", "--target", "slurm", "-o", "x"], "--target", TWICE),
        (["export", "atif", "--out", "x", "--prompt-ids", "--no-prompt-ids"], "--prompt-ids", TWICE),
        (
            ["scaffold", "check", "shell", "--only", ""],
            "--only",
            f"{EMPTY}: give a value or leave it out; is",
        ),
        (["rescore", "--domain", "coding", "--domain", ""], "--domain", EMPTY),
        (["eval", "--suite", ""], "--suite", EMPTY),
        (["eval", "--suite", "a", "--label", ""], "--label", EMPTY),
        (["tasks", "publish", "a", "--label", ""], "--label", EMPTY),
        (["eval", "show", "heldout", "--policy="], "--policy", EMPTY),
        (["config", "--set", ""], "--set", EMPTY),
        (["images", "build", "x", "--name", ""], "--name", EMPTY),
        (["cluster", "render", TOPOLOGY, "-t", "systemd", "-o", ""], "--out", EMPTY),
        (["cluster", "check", ""], "what", EMPTY),
        (["tasks", "check", ""], "sources", EMPTY),
        (["tasks", "generate", ""], "directory", EMPTY),
        (["scaffold", "new", ""], "directory", EMPTY),
        (["size", ""], "topology", EMPTY),
        (["compare", "-c", "a", "-c", ""], "--config", f"{EMPTY}: give a path"),
        (["scale", "", "runners=3"], "topology", EMPTY),
        (["config", ""], "keys", EMPTY),
        (["images", "export", "", "out.tar"], "image", f"{EMPTY}: give a value; is a variable"),
        (["images", "prune", ""], "images", EMPTY),
        (["drain", "runner", ""], "ID", EMPTY),
        (["eval", "show", ""], "suite", EMPTY),
        (["scaffold", "check", ""], "name", EMPTY),
        (["dead", "retry", ""], "identifier", EMPTY),
        (["run", "mix", ""], "DOMAIN=WEIGHT…", EMPTY),
        (["eval", "show", "\udcff"], "suite", f"{NOT_TEXT} 1)"),
        (["eval", "--suite", "a", "--label", "é\udcff"], "--label", f"{NOT_TEXT} 2)"),
        (["prune", "--run", "\udcff"], "--run", NOT_TEXT),
        (["rescore", "--task", "a", "--task", "\udcff"], "--task", NOT_TEXT),
        (["run", "end", "--reason", "\udcff"], "--reason", NOT_TEXT),
        (
            ["run", "pause", "--reason", "a" * 501],
            "--reason",
            "it has 501 characters, and a reason may have 500",
        ),
        (["config", "--set", "run.name=\udcff"], "--set", NOT_TEXT),
        (["compare", "-c", "a", "-c", "b", "--key", "\udcff"], "--key", NOT_TEXT),
        (["sql", "\udcff"], "statement", NOT_TEXT),
        (["eval", "-c", "nowhere", "list", "-c", "b"], "--config", BEFORE.format("eval list")),
        (["eval", "--suite", "zz", "show", "a"], "--suite", BEFORE.format("eval show")),
        (["eval", "--json", "list"], "--json", BEFORE.format("eval list")),
        (["trainer", "-c", "a", "verify", "--batch", "7"], "--config", BEFORE.format("trainer verify")),
        (
            ["trainer", "--set", "run.seed=1", "tree", "--help"],
            "--set",
            BEFORE.format("trainer tree"),
        ),
        (["eval", "show", "a", "--policy", "newest"], "--policy", "must be a whole number from 0 to"),
    ],
)
def test_an_option_or_a_path_that_cannot_count_is_refused_by_name(
    words: list[str], option: str, sentence: str
) -> None:
    found = refused(words)
    assert f"'{option}'" in found and sentence in found


@pytest.mark.parametrize(
    "words",
    [
        ["config", "--set", "run.seed=1", "--set", "run.name=b", "run.seed"],
        ["config", "--json", "--json", "run.seed"],
        ["config", "-c", "a", "-c", "b", "--help"],
    ],
)
def test_options_that_may_be_repeated_and_plain_flags_are_taken_twice(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(APP, words)
    assert done.exit_code == 0 and "given twice" not in done.stderr


@pytest.mark.parametrize("place", ["-c", "init"])
def test_a_path_may_have_any_bytes(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(APP, ["config", "-c", "\udcff"] if place == "-c" else ["init", "\udcff"])
    assert error.exit_code in (0, 1) and "UTF-8" not in f"{error.output}{error.exception}"


@pytest.mark.parametrize(
    ("source", "to", "wrong"),
    [
        ("set/one", "set/one", True),
        ("set/one", "set/one/out", True),
        ("set/one", "set/./one/tests/..", True),
        ("set", "set", True),
        ("set", "link", True),
        ("set/one", "set/imported", False),
        ("set", "other", False),
    ],
)
@pytest.mark.parametrize(("form", "file"), [("harbor", "task.toml"), ("terminal-bench", "task.yaml")])
def test_an_import_over_its_own_source_is_refused_and_writes_nothing(
    form: str, file: str, source: str, to: str, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set/one/tests").mkdir(parents=True)
    (tmp_path / "set/one" / file).touch()
    (tmp_path / "link").symlink_to("set")
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(APP, ["tasks", "import", form, source, "--to", to])
    assert ("is the source, or lies in its task" in str(done.exception)) == wrong
    assert not wrong or sorted(tmp_path.rglob("*")) == before


WHOLE, REAL = ["tasks", "vet", "x", "--times"], ["scaffold", "check", "shell", "--timeout-s"]
UNMEANT = ["1_0", "+5", " 5 ", "\uff15", "\u0665", "1e400", "nan", "inf", "-inf", "five", "0x5", "5.5.5"]


@pytest.mark.parametrize("given", [*UNMEANT, "0", "101", "5.0", "9" * 5000])
def test_a_whole_number_is_read_as_people_write_it_and_within_its_bounds(given: str) -> None:
    assert "'--times': it must be a whole number from 1 to 100, not '" in refused([*WHOLE, given])


@pytest.mark.parametrize("given", [*UNMEANT, "0", "0.5", "-3"])
def test_a_number_is_read_as_people_write_it_and_within_its_bounds(given: str) -> None:
    assert "'--timeout-s': it must be a number from 1, such as 0.5, not '" in refused([*REAL, given])


def numbers_of(command: Any) -> list[Any]:
    """The options and arguments of a command, and of those below it, that take numbers."""
    below = [each for name in getattr(command, "commands", {}) for each in numbers_of(command.commands[name])]
    own = [p for p in command.params if p.type_descriptor.annotation in (int, float)]
    return own + below


def test_every_number_of_the_command_line_is_checked() -> None:
    found = numbers_of(ROOT)
    assert len(found) > 15
    for param in found:
        if param.type_descriptor.parameter_info.parser is None:
            for given in UNMEANT:
                with pytest.raises(ValueError, match=r"must be a (whole )?number"):
                    _check_number(param, given)


@pytest.mark.parametrize("given", ["\u0663m", "1x5m", "\u0663", "\uff11h"])
def test_a_time_has_the_digits_0_to_9(given: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        since(given, 0.0)


@pytest.mark.parametrize("topology", ["missing.toml", "."])
def test_a_topology_that_cannot_be_opened_is_named_without_an_error_number(topology: str) -> None:
    error = CliRunner().invoke(APP, ["size", topology]).exception
    assert str(error).startswith(f"{topology}: ") and "Errno" not in str(error)
    assert f"one of {EXAMPLES}" in str(error) and list(EXAMPLES.glob("*.toml"))


def test_every_command_and_group_checks_its_options() -> None:
    def classes(command: Any) -> set[str]:
        below = getattr(command, "commands", {}).values()
        return {type(command).__module__, *(name for each in below for name in classes(each))}

    assert all(classes(each) == {"orchestrator.cli.arguments"} for each in ROOT.commands.values())


@pytest.mark.parametrize(
    "words", [["export", "atif", "--out", "x", "--label", ""], ["sft", "export", "--out", "x", "--label", ""]]
)
def test_an_empty_label_selects_what_has_none(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(APP, words)
    assert done.exit_code == 1 and "penstock.toml" in str(done.exception) and EMPTY not in done.stderr
