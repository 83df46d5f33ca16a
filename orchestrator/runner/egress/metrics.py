"""Prometheus metrics of the egress proxy."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.runtime.metrics import each


class EgressMetrics:
    """Metrics of all sandboxes of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connections = Counter(
            "penstock_egress_connections",
            "Connections that sandboxes opened to the egress proxy: allowed, refused, or failed on the way.",
            ["decision"],
            registry=registry,
        )
        self.bytes = Counter(
            "penstock_egress_bytes",
            "Bytes of allowed connections: sent by sandboxes, received by them.",
            ["direction"],
            registry=registry,
        )
        self.open = Gauge(
            "penstock_egress_open_connections",
            "Connections to the egress proxy that are open.",
            registry=registry,
        )
        each(self.connections, "allowed", "refused", "failed")
        each(self.bytes, "sent", "received")
