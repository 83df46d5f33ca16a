"""The metrics of one process, for Prometheus: one registry, and its address.

    with measuring() as process:                       # a process of Penstock, once, at its start
        measured(BusMetrics).publish_s.observe(0.003)  # anywhere inside; created at the first use, one of each kind
        with served(process.registry, target): ...     # http://127.0.0.1:PORT/metrics, and a file with the address
    with ready(): ...                              # inside /readyz answers 200, before and after it 503

`/healthz` answers 200 as long as the interpreter runs: the watchdog ends a process whose event loop hangs.

Names are `penstock_*` in base units. Labels are bounded: never the id of a task, group, rollout or session. A server in its own thread
answers, so even a process with a blocked event loop can report it.

Outside `measuring` the metrics go to a registry that is not read.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
)

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.log import get
from orchestrator.runtime.scrapes import Lost, ScrapeServer, ScrapeServer6

log = get(__name__)
M = TypeVar("M")

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
"""Buckets of calls: seconds."""
LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 7200)
"""Buckets of work: seconds."""
SUFFIX = ".metrics.json"
STOP_S = 0.1  # a process that ends waits this long for its last scrape


@dataclass(slots=True)
class ProcessMetrics:
    """The metrics of this process. `kinds`: the kinds created so far."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    kinds: dict[Any, Any] = field(default_factory=dict)
    ready: int = 0


_process: ContextVar[ProcessMetrics | None] = ContextVar("metrics", default=None)


@contextmanager
def measuring() -> Iterator[ProcessMetrics]:
    """Metrics for everything that is started inside: CPU time, memory and files of the process, and the kinds that `measured` creates."""
    process = ProcessMetrics()
    ProcessCollector(registry=process.registry)
    token = _process.set(process)
    try:
        yield process
    finally:
        _process.reset(token)


@contextmanager
def ready() -> Iterator[None]:
    """The process is ready while the context is open: it has found its run and its services."""
    process = _process.get()
    if process is None:
        yield
        return
    process.ready += 1
    try:
        yield
    finally:
        process.ready -= 1


def measured(kind: Callable[[CollectorRegistry], M]) -> M:
    """This process's `kind` of metrics."""
    process = _process.get()
    if process is None:
        metrics: M = _unread(kind)
        return metrics
    if kind not in process.kinds:
        process.kinds[kind] = kind(process.registry)
    found: M = process.kinds[kind]
    return found


@cache
def _unread(kind: Callable[[CollectorRegistry], Any]) -> Any:
    return kind(CollectorRegistry())


def each(counter: Counter, *values: str) -> Counter:
    """`counter`, with one label, at 0 for each value: an alert cannot see the increase of a series that did not exist before."""
    for value in values:
        counter.labels(value)
    return counter


@contextmanager
def joined(registry: Any) -> Iterator[CollectorRegistry]:
    """While the context is open, a scrape of this process's metrics includes those of `registry`. Yields the registry to read for all of
    them: `registry` itself outside of `measuring`."""
    process = _process.get()
    if process is None:
        yield registry
        return
    process.registry.register(registry)
    try:
        yield process.registry
    finally:
        process.registry.unregister(registry)


def only(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Set `gauge` to exactly these label values. Remaining series never disappear in between: a pending alert would restart."""
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
    for stale_labels in [labels for labels in list(gauge._metrics) if labels not in values]:
        gauge.remove(*stale_labels)


class BusMetrics:
    """Calls to NATS."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.publish_s = Histogram(
            "penstock_nats_publish_seconds",
            "Time until JetStream had stored a message, tries while NATS was away included.",
            ["kind"],
            buckets=SHORT,
            registry=registry,
        )
        self.refused = Counter(
            "penstock_nats_publish_refused",
            "Messages that JetStream did not take: stream full, too large, or refused.",
            ["kind"],
            registry=registry,
        )
        self.unread = Counter(
            "penstock_nats_unread",
            "Core messages that were dropped, and headers and answers that were ignored, because they could not be read, by kind.",
            ["kind"],
            registry=registry,
        )
        self.connected = Gauge(
            "penstock_nats_connected", "1: this process has a connection to NATS.", registry=registry
        )
        self.connections = Counter(
            "penstock_nats_connections",
            "Connections made to NATS: the first, and one for each that was lost.",
            registry=registry,
        )


class PoolMetrics:
    """Calls to Postgres. `at` names the commit, as in failpoints.BOUNDARIES."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.transaction_s = Histogram(
            "penstock_postgres_transaction_seconds",
            "Time of one transaction that was committed, waiting for a connection included.",
            ["at"],
            buckets=SHORT,
            registry=registry,
        )
        self.retries = Counter(
            "penstock_postgres_retries",
            "Transactions that had to be tried again, by SQLSTATE class; none: no answer.",
            ["sqlstate"],
            registry=registry,
        )


class ScrapeMetrics:
    """Connections to the port of the metrics themselves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        unanswered = Counter(
            "penstock_metrics_unanswered",
            "Connections to this process's metrics port that ended without an answer: late, gone, crowded (too many), failed.",
            ["why"],
            registry=registry,
        )
        self.unanswered = each(unanswered, *Lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The address and labels of one process's metrics. `file` receives the address, in the format of Prometheus's file_sd. Port 0: a free one."""

    file: Path
    run: str
    process: str
    host: str = "127.0.0.1"
    port: int = 0

    def tell(self, address: str) -> None:
        """Write to `file` that the process is read at `address`. A full disk costs the file, not the process."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps([entry(address, self.run, self.process)]) + "\n")
        except OSError as error:
            log.warning("metrics.address_not_written", file=str(self.file), error=str(error))


def entry(address: str, run: str, process: str) -> dict[str, Any]:
    """One target of file_sd. `instance` is the process's name, so its series continue after a restart on another port."""
    labels = {"run": run, "instance": process, "host": socket.gethostname()}
    return {"targets": [address], "labels": labels}


def _answers(metrics: WSGIApplication, process: ProcessMetrics | None) -> WSGIApplication:
    """`metrics`, and the probes of a container orchestrator: liveness and readiness."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/healthz", "/readyz"):
            return metrics(environ, start)
        healthy = path == "/healthz" or (process is not None and process.ready > 0)
        start("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if healthy else b"it is starting, or ends\n"]

    return answer


@contextmanager
def served(registry: CollectorRegistry, target: Target) -> Iterator[str]:
    """Answer scrapes of `registry` while the context is open; yields the address. Raises ConfigurationError if the port is taken."""
    try:
        lost = measured(ScrapeMetrics).unanswered
        server = (ScrapeServer6 if ":" in target.host else ScrapeServer)(
            (target.host, target.port),
            _answers(make_wsgi_app(registry), _process.get()),
            lambda why: lost.labels(why).inc(),
        )
    except OSError as error:
        raise ConfigurationError(
            f"metrics of {target.process} cannot be served at {target.host}:{target.port}: {error.strerror or error}; "
            "change metrics.host or metrics.ports"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(STOP_S,), name="metrics", daemon=True)
    thread.start()
    host = f"[{target.host}]" if ":" in target.host else target.host
    address = f"{host}:{server.server_port}"
    target.tell(address)
    try:
        yield address
    finally:
        target.file.unlink(missing_ok=True)
        server.shutdown()
        server.server_close()
        thread.join()


def targets(directory: Path) -> list[dict[str, Any]]:
    """The addresses that the processes of one run directory have written, by name."""
    found: list[dict[str, Any]] = []
    for file in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            found.extend(json.loads(file.read_text()))
        except (OSError, ValueError):
            continue  # gone, or just being written
    return found
