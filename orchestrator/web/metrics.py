"""Metrics of the dashboard process."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class WebMetrics:
    """Created by `orchestrator.runtime.metrics.measured`, once per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "penstock_web_requests", "requests answered", ["method", "status"], registry=registry
        )
        self.errors = Counter(
            "penstock_web_errors", "requests that failed unexpectedly", ["method"], registry=registry
        )
        self.actions = Counter("penstock_web_actions", "steering actions done", ["what"], registry=registry)
        self.listeners = Gauge("penstock_web_listeners", "browsers that follow live", registry=registry)
