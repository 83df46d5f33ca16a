"""`/metrics` in Prometheus text, under the names that SGLang uses."""

import time
from collections.abc import Iterator
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class _EngineState:
    """Reads the scheduler's plain numbers at scrape time; a scrape never waits for the engine."""

    def __init__(self, scheduler: Scheduler, labels: dict[str, str]) -> None:
        self._scheduler = scheduler
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        s, c = self._scheduler, self._scheduler.counters
        used = s.pool.held + s.cache.tokens
        gauges = {
            "num_running_reqs": ("Number of running requests.", len(s.running)),
            "num_queue_reqs": ("Number of requests in the waiting queue.", len(s.waiting)),
            "num_used_tokens": ("Tokens of KV memory in use, the prefix cache included.", used),
            "max_total_num_tokens": ("Tokens of KV memory.", s.max_total_tokens),
            "token_usage": ("Share of KV memory in use.", used / s.max_total_tokens),
            "cache_hit_rate": ("Share of prompt tokens found in the prefix cache.", hit_rate(s)),
            "gen_throughput": ("Generated tokens per second.", c.throughput),
        }
        for name, (text, value) in gauges.items():
            yield self._family(GaugeMetricFamily, name, text, value)
        counters = {
            "num_requests": ("Number of requests processed.", c.requests),
            "prompt_tokens": ("Number of prefill tokens processed.", c.prompt_tokens),
            "cached_tokens": ("Number of prompt tokens found in the prefix cache.", c.cached_tokens),
            "generation_tokens": ("Number of generation tokens processed.", c.generated_tokens),
            "num_aborted_requests": ("Number of requests aborted.", c.aborted),
            "num_retractions": ("Number of retractions.", c.retracted),
        }
        for name, (text, value) in counters.items():
            yield self._family(CounterMetricFamily, name, text, value)
        cpu = CounterMetricFamily(
            "sglang:process_cpu_seconds", "Total CPU time consumed by this process.", labels=["component"]
        )
        cpu.add_metric(["server"], time.process_time())
        yield cpu

    def _family(
        self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, text: str, value: float
    ) -> Metric:
        family = kind(f"sglang:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family


def hit_rate(scheduler: Scheduler) -> float:
    counters = scheduler.counters
    return counters.cached_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0


class ServerMetrics:
    """One registry per server; nothing global."""

    def __init__(self, scheduler: Scheduler, model_name: str) -> None:
        self._registry = CollectorRegistry()
        labels = {"engine_type": "unified", "model_name": model_name}
        self._registry.register(_EngineState(scheduler, labels))
        self._requests = Counter(
            "sglang:http_requests",
            "Total number of HTTP requests by endpoint and method",
            ["endpoint", "method"],
            registry=self._registry,
        )
        self._responses = Counter(
            "sglang:http_responses",
            "Total number of HTTP responses by endpoint and status code",
            ["endpoint", "method", "status_code"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "sglang:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            list(labels),
            buckets=LATENCY_BUCKETS,
            registry=self._registry,
        ).labels(**labels)
        self._whole = Histogram(
            "sglang:e2e_request_latency_seconds",
            "Histogram of End-to-end request latency in seconds",
            list(labels),
            buckets=LATENCY_BUCKETS,
            registry=self._registry,
        ).labels(**labels)

    def join(self, registry: CollectorRegistry) -> None:
        """Also export the metrics of `registry`."""
        self._registry.register(cast(Collector, registry))

    def count_request(self, endpoint: str, method: str) -> None:
        self._requests.labels(endpoint, method).inc()

    def answered(self, endpoint: str, method: str, status: int) -> None:
        self._responses.labels(endpoint, method, str(status)).inc()

    def completed(self, sequence: Sequence) -> None:
        if sequence.first_token is not None:
            self._first_token.observe(sequence.first_token - sequence.received)
        if sequence.finished is not None:
            self._whole.observe(sequence.finished - sequence.received)

    def text(self) -> bytes:
        return generate_latest(self._registry)
