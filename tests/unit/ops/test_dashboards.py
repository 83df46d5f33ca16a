"""Dashboards and alerts are whole: the files that Grafana and Prometheus load, and their texts for operators. A test on a real stack
checks that every metric exists (tests/e2e/test_the_loop.py)."""

import re

import pytest
import yaml

from tests.dashboards import DIRECTORY, REPOSITORY, alerts, boards, expressions, names


def test_there_is_a_dashboard_for_the_run_the_gateway_the_trainer_and_the_infrastructure() -> None:
    uids = [board["uid"] for board in boards()]
    wanted = ("gateway", "infrastructure", "overview", "trainer")
    assert uids == [f"penstock-{name}" for name in wanted]
    for board in boards():
        variables = [one["name"] for one in board["templating"]["list"]]
        assert variables == ["datasource", "run", "instance"] and board["schemaVersion"] >= 39


def test_panels_have_unique_ids_do_not_overlap_and_query_one_run() -> None:
    for board in boards():
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken and place["x"] + place["w"] <= 24, (board["uid"], panel["title"])
            taken |= cells
            for target in panel.get("targets", []):
                assert target["datasource"]["uid"] == "${datasource}"
                assert 'run="$run"' in target["expr"], (board["uid"], panel["title"], target["expr"])


def test_every_alert_is_a_sentence_with_a_severity_and_a_guide_that_exists() -> None:
    found = alerts()
    assert len({rule["alert"] for rule in found}) == len(found) > 20
    for rule in found:
        summary, guide = rule["annotations"]["summary"], rule["annotations"]["guide"]
        assert summary.endswith(".") and len(summary) > 40, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        path, _, anchor = guide.partition("#")
        headings = re.findall(r"^#+ (.*)$", (REPOSITORY / path).read_text(), re.MULTILINE)
        assert not anchor or anchor in {slug(heading) for heading in headings}, (rule["alert"], guide)


def slug(heading: str) -> str:
    """The anchors that GitHub makes from headings."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_scrape_example_finds_the_files_that_processes_write() -> None:
    example = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
    (job,) = example["scrape_configs"]
    assert job["job_name"] == "penstock" and job["honor_labels"]
    files = [file for found in job["file_sd_configs"] for file in found["files"]]
    assert all(file.endswith("/.penstock/run/*.metrics.json") for file in files)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('rate(a_total{x="b", y=~"c|d"}[5m])', {"a_total"}),
        (
            "sum by (run, le) (b_bucket) / on (run) group_left c_sum > 4e8 and d == 0",
            {"b_bucket", "c_sum", "d"},
        ),
        ("vector(0) or sum(e) without (f) unless on () g offset 5m", {"e", "g"}),
    ],
)
def test_the_metrics_of_an_expression_are_read_from_it(expression: str, found: set[str]) -> None:
    assert names(expression) == found


def test_every_expression_names_a_metric() -> None:
    assert all(names(expression) for _, expression in expressions())


def test_a_server_that_is_reserved_for_evaluations_is_not_behind() -> None:
    (rule,) = (rule for rule in alerts() if rule["alert"] == "PenstockWeightsBehind")
    assert 'penstock_gateway_server_version{purpose="train"}' in rule["expr"]
