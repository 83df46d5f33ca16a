"""The runbooks answer every alert, each page in the same order; their commands, links and queries are checked with those of the guides."""

import re
from pathlib import Path

import pytest

from tests.dashboards import alerts
from tests.guides import GUIDES, REPOSITORY, RUNBOOKS, inline

HEADINGS = ["Symptom", "What it means", "Look", "Do", "What is lost", "It is over when"]
INCIDENTS = sorted(path for path in RUNBOOKS.glob("*.md") if path.name != "README.md")


def symptom(page: Path) -> str:
    return page.read_text().partition("## What it means")[0]


def sources() -> str:
    tops = ("orchestrator", "trainer", "sandboxes", "agents")
    return "".join(path.read_text() for top in tops for path in (REPOSITORY / top).rglob("*.py"))


@pytest.mark.parametrize("page", INCIDENTS, ids=lambda page: page.stem)
def test_a_runbook_tells_symptom_meaning_looks_deeds_losses_and_its_end_in_this_order(page: Path) -> None:
    assert re.findall(r"^## (.+)$", page.read_text(), re.M) == HEADINGS
    look = page.read_text().partition("## Look")[2].partition("## Do")[0]
    assert "penstock " in look


def test_there_are_ten_and_the_index_has_them_all() -> None:
    linked = re.findall(r"^\| \[([\w-]+\.md)\]", (RUNBOOKS / "README.md").read_text(), re.M)
    assert sorted(linked) == [page.name for page in INCIDENTS] and len(linked) == 10
    assert "](../runbooks/README.md)" in (GUIDES / "README.md").read_text()


def test_every_alert_names_a_runbook_that_has_it_as_a_symptom_or_that_of_what_it_shows() -> None:
    for rule in alerts():
        page = REPOSITORY / rule["annotations"]["runbook"]
        assert page in INCIDENTS and f"`{rule['alert']}`" in symptom(page), rule["alert"]


def test_every_alert_metric_and_log_line_that_a_runbook_names_is_one() -> None:
    known, code = {rule["alert"] for rule in alerts()}, sources()
    wrong = []
    for page in INCIDENTS:
        for span in inline(page.relative_to(REPOSITORY).as_posix()):
            if span.startswith("Penstock"):
                found = span in known
            elif span.startswith("penstock_"):
                found = span.removesuffix("_total") in code  # the client adds it to counters
            elif re.fullmatch(r"[a-z]+\.[a-z_]+|nats_[a-z]+", span):
                section, _, key = span.partition(".")
                found = f'"{span}"' in code or f"    {key}: " in code or f"    {section}: " in code
            else:
                continue
            wrong += [] if found else [f"{page.name}: {span}"]
    assert wrong == []


def test_every_sentence_of_penstock_status_that_a_runbook_quotes_stands_in_the_code() -> None:
    code = re.sub(r"\{[^{}]*\}", "…", sources())
    for page in INCIDENTS:
        quoted = re.findall(r'`penstock status`[^".]*"([^"]+)"', symptom(page))
        for sentence in quoted:
            pieces = [piece.strip(" :.,)(") for piece in sentence.split("…")]
            for piece in pieces:
                assert piece in code, (page.name, piece)
