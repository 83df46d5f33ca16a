"""The page "What happens when …" names existing tests and settings."""

import re
from pathlib import Path

import pytest

from orchestrator.runner.grade import PROCESS_BYTES, RESULTS_BYTES, REWARD_BYTES
from orchestrator.settings.config import Config
from orchestrator.tasks.verdict import MAX_NAME, MAX_SIGNALS

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "ops/guides/what-happens-when.md"


def rows() -> list[list[str]]:
    """The cells of every row of the tables of faults."""
    faults, _, _ = PAGE.read_text().partition("## Measured")
    lines = [line for line in faults.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_fault_has_a_test_that_exists_or_a_command() -> None:
    table = [row for row in rows() if row[0] != "fault"]
    assert len(table) > 40
    for row in table:
        assert len(row) == 5 and all(row), row
        named = re.findall(r"`(tests/[a-z0-9_/]+\.py)::(test_\w+)`", row[4])
        assert named or "`./ops/" in row[4], f"no test shows: {row[0]}"
        for path, name in named:
            assert f"def {name}(" in (REPOSITORY / path).read_text(), f"{path} has no {name}"


@pytest.mark.parametrize("section", ["rollout", "queue", "gateway", "servers", "watchdog"])
def test_its_settings_are_settings(section: str) -> None:
    known = getattr(Config(), section)
    for key in set(re.findall(rf"`{section}\.(\w+_(?:s|mb|attempts))`", PAGE.read_text())):
        assert hasattr(known, key), f"{section}.{key} is not a setting"


def test_its_links_lead_somewhere_and_the_readme_leads_to_it() -> None:
    links = [part.partition(")")[0] for part in PAGE.read_text().split("](")[1:]]
    assert links and all((PAGE.parent / link).exists() for link in links), links
    assert f"ops/guides/{PAGE.name}" in (REPOSITORY / "README.md").read_text()


def test_its_sizes_of_the_files_of_verdicts_are_those_of_the_code() -> None:
    _, _, sizes = PAGE.read_text().partition("## Sizes and lengths")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in sizes.splitlines()]
    limits = {row[0]: row[1] for row in cells if len(row) == 3}
    assert limits["`reward.txt`, `reward.json`"] == f"{REWARD_BYTES:,} bytes each"
    assert RESULTS_BYTES == PROCESS_BYTES
    assert limits["`results.json`, `process.json`"] == f"{RESULTS_BYTES:,} bytes each"
    assert limits["named numbers in `reward.json` and `process.json`"] == str(MAX_SIGNALS)
    assert limits["name in `reward.json` and `process.json`"] == str(MAX_NAME)
