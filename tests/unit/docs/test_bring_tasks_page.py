"""The guide "Bring your tasks": its order of commands, its tables of the task set, and its table of refusals."""

import re

from ops.lab.task_set import PLAIN, WITH_IMAGES
from tests.guides import PAGES, REPOSITORY, commands

PAGE = "ops/guides/bring-your-tasks.md"
SHORT = 8


def test_the_run_of_the_guide_is_made_first_and_is_up_before_anything_is_sent_to_it() -> None:
    lines = commands(PAGE)
    calls = [
        next((n for n, line in enumerate(lines) if line.startswith(f"penstock {call}")), -1)
        for call in ("init runs/mine", "up -c runs/mine", "tasks publish mine", "eval ")
    ]
    assert calls[0] == 0 and calls == sorted(calls), lines
    assert {word for line in lines for word in line.split() if word.startswith("runs/")} == {"runs/mine"}


def test_the_guide_counts_the_tasks_of_the_set() -> None:
    counts = re.findall(r"the (\d+)(?: tasks| with probes)", PAGES[PAGE])
    assert counts and {int(number) for number in counts} == {len(PLAIN)}


def test_every_task_of_the_set_is_in_the_table_of_levels() -> None:
    table = PAGES[PAGE].partition("| task | level | s |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", table)) >= {*PLAIN, *WITH_IMAGES}


def test_every_task_of_the_set_is_in_the_table_of_kinds() -> None:
    table = PAGES[PAGE].partition("| kind | task |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", table)) >= {*PLAIN, *WITH_IMAGES}


def test_every_message_in_the_table_of_refusals_is_one_of_the_code() -> None:
    table = PAGES[PAGE].partition("| message | remedy |\n|---|---|\n")[2].partition("\n\n")[0]
    code = "".join(
        path.read_text() for top in ("orchestrator", "sandboxes") for path in (REPOSITORY / top).rglob("*.py")
    )
    missing = []
    for row in table.splitlines():
        for span in re.findall(r"`([^`]+)`", row.split("|")[1]):
            parts = [
                part.strip(" :")
                for part in re.split(r"…|\[[a-z]+\]\.\w+ = |'[^']*'|RUN |ENTRYPOINT |FROM, .*", span)
            ]
            missing += [
                part for part in parts if len(part) >= SHORT and not part.startswith("[") and part not in code
            ]
    assert [
        part for part in missing if part not in ("tests/test.sh begins with", "docker-compose.yaml: service")
    ] == []
