"""The metrics of a process: one registry, an address that Prometheus finds, and counters that are not read outside a process."""

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.metrics import (
    PoolMetrics,
    Target,
    each,
    joined,
    measured,
    measuring,
    only,
    ready,
    served,
    targets,
)
from orchestrator.settings.config import load
from tests.e2e.scraped import Scrape
from trainer.metrics import TrainerMetrics


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_what_is_measured_anywhere_in_a_process_lies_in_its_one_registry() -> None:
    with measuring() as process:
        measured(PoolMetrics).retries.labels("40").inc()
        assert measured(PoolMetrics) is measured(PoolMetrics)
    assert value(process.registry, "penstock_postgres_retries_total", sqlstate="40") == 1


def test_outside_of_a_process_it_is_counted_but_not_exported() -> None:
    measured(PoolMetrics).retries.labels("40").inc()
    with measuring() as process:
        measured(PoolMetrics)
    assert value(process.registry, "penstock_postgres_retries_total", sqlstate="40") is None


def test_a_registry_that_joins_is_read_with_the_others_until_it_leaves() -> None:
    own = CollectorRegistry()
    Counter("penstock_one", "one of them", registry=own).inc()
    with measuring() as process:
        with joined(own) as all_of_them:
            assert value(all_of_them, "penstock_one_total") == 1
        assert value(process.registry, "penstock_one_total") is None
    with joined(own) as alone:
        assert alone is own


def test_what_stays_of_a_gauge_is_never_away_while_others_go() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("penstock_some", "some of them", ["kind"], registry=registry)
    only(gauge, {("a",): 1, ("b",): 2})
    stays = gauge.labels("b")
    only(gauge, {("b",): 3})
    assert gauge.labels("b") is stays and value(registry, "penstock_some", kind="b") == 3
    assert value(registry, "penstock_some", kind="a") is None


def test_a_process_says_that_it_lives_and_whether_it_can_work(tmp_path: Path) -> None:
    def status_of(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{address}{path}") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with (
        measuring() as process,
        served(process.registry, Target(file=tmp_path / "x.json", run="r", process="x")) as address,
    ):
        assert (status_of("/healthz"), status_of("/readyz"), status_of("/metrics")) == (200, 503, 200)
        with ready():
            assert status_of("/readyz") == 200
        assert status_of("/readyz") == 503


def test_a_counter_is_there_before_it_counts() -> None:
    registry = CollectorRegistry()
    each(Counter("penstock_ends", "how it ends", ["why"], registry=registry), "well")
    assert value(registry, "penstock_ends_total", why="well") == 0


def test_a_process_answers_at_the_address_in_its_file_which_goes_with_it(tmp_path: Path) -> None:
    target = Target(file=tmp_path / "run" / "trainer.metrics.json", run="first", process="trainer")
    with measuring() as process, served(process.registry, target) as address:
        measured(PoolMetrics).retries.labels("08").inc()
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            text = answer.read().decode()
        (found,) = targets(target.file.parent)
        assert found == {
            "targets": [address],
            "labels": {"run": "first", "instance": "trainer", "host": socket.gethostname()},
        }
        assert [found] == json.loads(target.file.read_text())
    assert (
        'penstock_postgres_retries_total{sqlstate="08"} 1.0' in text and "process_cpu_seconds_total" in text
    )
    assert targets(target.file.parent) == [] and not target.file.exists()


def test_a_file_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "gateway.metrics.json").write_text("[{")
    assert targets(tmp_path) == []


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = Target(
            file=tmp_path / "a.metrics.json", run="first", process="trainer", port=taken.getsockname()[1]
        )
        with pytest.raises(
            ConfigurationError, match=r"^metrics of trainer cannot be served at .* metrics.ports$"
        ):
            with served(CollectorRegistry(), target):
                raise AssertionError("it was served")


def test_ports_are_of_single_processes(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[metrics]\nports = { trainer = 9101 }\nhost = "::1"\n')
    section = load(tmp_path / "penstock.toml").metrics
    assert section.ports == {"trainer": 9101} and section.host == "::1"


def test_a_train_step_is_gauges_counters_and_a_histogram_of_token_ages() -> None:
    registry = CollectorRegistry()
    metrics = TrainerMetrics(registry)
    report = {
        "applied": True, "skip_reason": None, "loss": -0.5, "kl_k3": None, "wall_s": 2.0, "action_tokens": 30, "tokens_naive": 90,
        "tokens_merged": 45, "staleness": {"0": 10, "2": 20}, "seconds": {"forward": 1.0},
        "domains": {"coding": {"reward": 1.5, "performance": 0.5, "token_share": 1.0}},
    }  # fmt: skip
    metrics.trained(report)
    metrics.spent({"forward": 1.0, "read": 0.5})
    assert value(registry, "penstock_train_loss") == -0.5
    assert str(value(registry, "penstock_train_kl_k3_nats")) == "nan"
    assert value(registry, "penstock_train_performance_ratio", domain="coding") == 0.5
    assert value(registry, "penstock_train_staleness_versions_bucket", le="1.0") == 10
    assert value(registry, "penstock_train_staleness_versions_bucket", le="2.0") == 30
    assert value(registry, "penstock_train_staleness_versions_sum") == 40
    assert value(registry, "penstock_train_tokens_total", kind="merged") == 45
    assert value(registry, "penstock_train_phase_seconds_total", phase="read") == 0.5
    assert value(registry, "penstock_train_steps_total", outcome="applied") == 1
    assert value(registry, "penstock_train_steps_total", outcome="gradient_spike") == 0
    assert "penstock_train_staleness_versions_count" in Scrape("trainer", list(registry.collect())).names
    metrics.trained(
        {**report, "domains": {"agent": {"reward": 1.0, "performance": 0.25, "token_share": 1.0}}}
    )
    for gauge, agent in (("reward", 1.0), ("performance_ratio", 0.25), ("token_share_ratio", 1.0)):
        assert value(registry, f"penstock_train_{gauge}", domain="agent") == agent
        assert value(registry, f"penstock_train_{gauge}", domain="coding") is None
