"""`--help` teaches by example: every command has one, and every one parses against the real options."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.examples import EXAMPLES
from orchestrator.cli.main import app
from orchestrator.scaffold_check.run import NAMES
from tests.unit.cli.commands import COMMANDS, ROOT

GUIDES = Path(__file__).resolve().parents[3] / "ops/guides"
UsageError: Any = typer.BadParameter.__bases__[0]
ENDS = {";", "|", ">", "<", "&", "||", "&&", ">>"}


def calls(line: str) -> Iterator[list[str]]:
    """The arguments of every call of penstock in a shell line."""
    words = shlex.shlex(line, posix=True, punctuation_chars=";|><&")
    words.whitespace_split = True
    call: list[str] | None = None
    for word in [*words, ";"]:
        if word in ENDS:
            if call is not None:
                yield call
            call = None
        elif word.startswith("$("):
            yield from calls(word[2:-1])
        elif call is not None:
            call.append(word)
        elif word == "penstock":
            call = []


def examples(command: Any) -> list[str]:
    """Lines of the end of a help text, and the text behind the colon of its first paragraph."""
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    described = re.search(
        r": ((?:eval \"\$\()?penstock .+)$", (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
    )
    return [line for line in [*lines, described[1] if described else ""] if "penstock " in line]


def parse(arguments: Sequence[str]) -> str:
    """The command that these arguments call. UsageError if they do not fit."""
    command, rest = ROOT, list(arguments)
    path: list[str] = []
    context: Any = None
    while True:
        context = command.make_context(path[-1] if path else "penstock", rest, parent=context)
        if not hasattr(command, "commands") or not (rest := [*context._protected_args, *context.args]):
            return " ".join(path)
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None and name is not None
        command = found
        path.append(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_and_each_of_them_parses(name: str) -> None:
    lines = examples(COMMANDS[name])
    assert lines, f"penstock {name} has no example: give it one in orchestrator/cli/examples.py"
    assert len({parse(call) for line in lines for call in calls(line)} & {name}) == 1
    assert COMMANDS[name].help, f"penstock {name} says not what it does"


def test_an_example_whose_options_are_none_is_found_out() -> None:
    for wrong in (
        "penstock show rollout",
        "penstock show rollout x",
        "penstock tail --nothing",
        "penstock nothing",
        "penstock sql",
    ):
        [call] = calls(wrong)
        with pytest.raises(UsageError):
            parse(call)


def test_the_commands_of_the_guides_parse() -> None:
    found = 0
    for page in (GUIDES / "command-line.md", GUIDES / "sql-cookbook.md"):
        text = page.read_text()
        blocks = re.findall(r"^```sh\n([\s\S]*?)^```", text, re.M) + re.findall(
            r"^    (penstock .*)$", text, re.M
        )
        for line in "\n".join(blocks).splitlines():
            for call in calls(line):
                parse(call)
                found += 1
    assert found >= 8


def test_the_example_of_a_check_asks_a_question_that_there_is() -> None:
    (line,) = EXAMPLES["scaffold check"]
    assert line.split("--only ")[1] in NAMES


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert set(EXAMPLES) - set(COMMANDS) == set()


def test_examples_stand_at_the_end_of_the_help() -> None:
    output = CliRunner().invoke(app, ["logs", "--help"]).stdout
    assert (
        output.rstrip().endswith("  penstock logs -c runs/first --group 201 --lines 0 --json")
        and "\n  Examples:\n" in output
    )


def test_the_command_line_starts_without_what_only_some_commands_need() -> None:
    heavy = "torch transformers textual sqlalchemy asyncpg pyarrow datasets wandb tensorboard inspect_ai aiohttp nats tokenizers alembic"
    script = f"import sys, orchestrator.cli.main; print(sorted({{name.partition('.')[0] for name in sys.modules}} & set({heavy!r}.split())))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_shell_completes_commands_options_and_names() -> None:
    def completed(line: str) -> list[str]:
        environment = {
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        done = CliRunner().invoke(app, [], env=environment, prog_name="penstock")
        return done.stdout.split()

    assert completed("penstock ta") == ["tail", "tasks"]
    assert "--follow" in completed("penstock logs --fo")
    assert completed("penstock show ro") == ["rollout"]
    assert "mini-swe-agent" in completed("penstock tasks publish x --scaffold mini")
