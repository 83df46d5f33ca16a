"""Prometheus metrics of a worker: its slots, its sandboxes, its work and durations."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orchestrator.runtime.metrics import (
    LONG,
    SHORT,
    each,
    measured,
)


class WorkerMetrics:
    """Metrics of one runner or verifier runner. `kind` is attempt or verification."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.slots = Gauge("penstock_worker_slots", "Slots of this worker.", registry=registry)
        self.busy = Gauge(
            "penstock_worker_busy_slots", "Slots in which work is being done.", registry=registry
        )
        self.work_s = Histogram(
            "penstock_work_seconds",
            "One attempt or verification, from its lease to its result in the journal.",
            ["kind"],
            buckets=LONG,
            registry=registry,
        )
        self.lost = Counter(
            "penstock_leases_lost",
            "Work that was given up because its lease was lost.",
            ["kind"],
            registry=registry,
        )
        self.errors = Counter(
            "penstock_work_errors",
            "Work that ended because Penstock's own code raised an error.",
            ["kind"],
            registry=registry,
        )
        each(self.errors, "attempt", "verification")  # and "vetting", where tasks are vetted
        self.sandboxes = Gauge("penstock_sandboxes", "Sandboxes that are open.", registry=registry)
        self.opened = Counter("penstock_sandboxes_opened", "Sandboxes that were opened.", registry=registry)
        self.failed = Counter(
            "penstock_sandbox_failures",
            "Sandboxes that could not be opened: full, or failing.",
            ["why"],
            registry=registry,
        )
        each(self.failed, "full", "failing")
        each(self.lost, "attempt", "verification")
        self.start_s = Histogram(
            "penstock_sandbox_start_seconds",
            "Opening a sandbox.",
            buckets=(*SHORT, 60, 300),
            registry=registry,
        )
        self.journal = Gauge(
            "penstock_journal_bytes",
            "Results in the journal that the data pool does not have yet.",
            registry=registry,
        )


@contextmanager
def working(kind: str) -> Iterator[None]:
    """Count a busy slot and the duration of its work."""
    metrics, started = measured(WorkerMetrics), time.monotonic()
    metrics.busy.inc()
    try:
        yield
    finally:
        metrics.busy.dec()
        metrics.work_s.labels(kind).observe(time.monotonic() - started)
