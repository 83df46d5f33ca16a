"""The guide of evaluations: its commands are read by the real command line, and its settings by the real configuration."""

import re
import shlex
import tomllib
from pathlib import Path

import typer.main

from orchestrator.cli.main import app
from orchestrator.settings.config import Config

GUIDE = (Path(__file__).parents[3] / "ops/guides/evaluations.md").read_text()


def test_every_command_of_the_guide_has_the_options_that_it_names() -> None:
    lines = re.findall(r"^    penstock (eval .*?)(?:\s+#.*)?$", GUIDE, re.MULTILINE)
    assert len(lines) == 6
    root = typer.main.get_command(app)
    for line in lines:
        words = shlex.split(line)
        command = root.commands["eval"]  # type: ignore[attr-defined]
        arguments = words[1:]
        if arguments[0] in command.commands:
            command, arguments = command.commands[arguments[0]], arguments[1:]
        command.make_context("eval", arguments, resilient_parsing=False)


def test_the_settings_of_the_guide_are_read() -> None:
    (block,) = re.findall(r"(?:^    .*\n)+", GUIDE[GUIDE.index("    [servers]") :], re.MULTILINE)[:1]
    config = Config.model_validate(tomllib.loads(block.replace("    ", "")))
    assert (config.servers.embedded, config.servers.evaluation) == (2, 1)
