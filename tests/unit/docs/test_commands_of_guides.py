"""Commands of the guides work from the repository, where start.md keeps its reader: they name their run."""

from typing import Any

import pytest

from orchestrator.cli.options import HERE
from tests.guides import PAGES, commands, inline
from tests.unit.cli.commands import ROOT
from tests.unit.cli.test_help import calls

ELSEWHERE = {("scale", "mine.toml", "runners=3", "servers=1")}
"""Commands that read no run, because they name a topology alone."""


def takes_a_run(call: list[str]) -> bool:
    """Whether the command has an option -c, and means the working directory without it."""
    command: Any = ROOT
    for word in call:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    defaults = [each.default for each in command.params if "--config" in each.opts]
    return bool(defaults) and defaults[0] is not None and str(defaults[0]) == str(HERE)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_and_every_query_names_its_run(page: str) -> None:
    lines = [*commands(page), *(span for span in inline(page) if span.startswith("penstock sql "))]
    found = [call for line in lines for call in calls(line)]
    unnamed = [
        call
        for call in found
        if takes_a_run(call) and not {"-c", "--config"} & set(call) and tuple(call) not in ELSEWHERE
    ]
    assert unnamed == []


def test_no_two_guides_make_a_run_in_one_directory() -> None:
    """`penstock init` refuses a directory that has a run. The README repeats start.md."""
    made = [
        {call[1] for line in lines for call in calls(line) if call[:1] == ["init"]}
        for page in PAGES
        if page.startswith("ops/guides/")
        for lines in [
            [*commands(page), *(span for span in inline(page) if span.startswith("penstock init "))]
        ]
    ]
    directories = [directory for found in made for directory in found if "/" in directory]
    assert len(directories) >= 4 and len(directories) == len(set(directories))


def test_the_guide_that_publishes_to_the_first_run_says_that_it_ends() -> None:
    page = PAGES["ops/guides/publish-tasks.md"]
    [line] = [line for line in PAGES["ops/guides/start.md"].splitlines() if line.startswith("end_batches")]
    assert f"ends with its {line.split()[2]}th batch" in page.partition("## By command")[0]


def test_a_command_that_needs_a_run_is_known() -> None:
    assert takes_a_run(["sql", "select 1"]) and takes_a_run(["tasks", "publish", "mine"])
    assert not takes_a_run(["tasks", "check", "mine"]) and not takes_a_run(["tasks", "generate", "suite"])
