"""A stack's metrics as Prometheus would read them, and whether an operator can work with them."""

import json
import re
from dataclasses import dataclass

import aiohttp
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.log_lines import about
from tests.dashboards import OF_PROMETHEUS, expressions, names
from tests.e2e.stack_rig import Stack

PROCESSES = {"gateway", "orchestrator", "rollout-server", "runner", "trainer", "verifier", "web"}
LABELS = {
    "at", "domain", "fate", "failure_class", "how", "kind", "loop", "name", "outcome", "phase", "process", "purpose", "reason", "server", "sqlstate",
    "stage", "state", "waits_for", "where", "why", "wire", "le", "method", "status",
}  # fmt: skip
UNITS = re.compile(r"_(ms|s|secs|msec|minutes|hours|kb|mb|gb|kib|mib|percent|pct)(_|$)")
MAX_SERIES = 60  # of one family of one process, without its buckets


@dataclass(frozen=True)
class Scrape:
    """The families of one process."""

    process: str
    families: list[Metric]

    @property
    def names(self) -> set[str]:
        """Every name that an expression may use."""
        found = set()
        for family in self.families:
            endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            found |= {family.name + ending for ending in endings.get(family.type, ("",))}
            found |= {sample.name for sample in family.samples}
        return found


async def scraped(stack: Stack) -> list[Scrape]:
    """Query every process that reports an address, as Prometheus does."""
    targets = json.loads(stack.penstock("metrics", "targets").stdout)
    found = []
    async with aiohttp.ClientSession() as http:
        for target in targets:
            assert target["labels"].keys() == {"run", "instance", "host"} and target["labels"]["run"] == "e2e"
            async with http.get(f"http://{target['targets'][0]}/metrics") as answer:
                text = await answer.text()
            families = list(text_string_to_metric_families(text))
            found.append(Scrape(target["labels"]["instance"], families))
    return found


def check(scrapes: list[Scrape]) -> None:
    """Every process answers, with valid names, units and labels, and with every metric that dashboards and alerts query."""
    assert {scrape.process for scrape in scrapes} >= PROCESSES
    for scrape in scrapes:
        for family in scrape.families:
            complain(scrape.process, family)
    known = set().union(*(scrape.names for scrape in scrapes)) | OF_PROMETHEUS
    assert {where: wanted - known for where, text in expressions() if (wanted := names(text)) - known} == {}


def complain(process: str, family: Metric) -> None:
    """Raise AssertionError for a defect of one family."""
    where = f"{process}: {family.name}"
    if family.name.startswith("sglang:"):
        return  # the names are SGLang's
    assert family.name.startswith(("penstock_", "process_")), where
    assert len(family.documentation) > 10, where
    assert not UNITS.search(family.name), f"{where}: base units, seconds and bytes"
    assert family.type == "counter" or not family.name.endswith("_total"), where
    series = [sample for sample in family.samples if not sample.name.endswith(("_bucket", "_created"))]
    assert len(series) <= MAX_SERIES * (2 if family.type == "histogram" else 1), (
        f"{where}: {len(series)} series"
    )
    for sample in family.samples:
        assert sample.labels.keys() <= LABELS, (where, sample.labels)
        ids = {key: value for key, value in sample.labels.items() if key != "le" and value.isdigit()}
        assert not ids or ids.keys() == {"sqlstate"}, f"{where}: {ids}"


def followed(stack: Stack, kind: str, number: int) -> dict[str, list[str]]:
    """Process → events of the log lines about one rollout or group. Every line is JSON with its process and, except the first lines, its run."""
    found: dict[str, list[str]] = {}
    for log in sorted(stack.home.layout.logs.glob("*.log")):
        for line in log.read_text().splitlines():
            if not line.startswith("{"):
                continue  # services
            event = json.loads(line)
            if about(event, kind, number):
                assert event["run"] == "e2e", event
                found.setdefault(event["process"], []).append(event["event"])
    return found
