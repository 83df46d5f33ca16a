"""Clients of the metrics port that are slow, silent, many or gone: they hold no thread, and leave a count instead of a traceback."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from orchestrator.runtime import scrapes
from orchestrator.runtime.metrics import Target, measuring, served
from orchestrator.runtime.scrapes import Lost
from tests.waiting import eventually_blocking

LONG_S = 60.0


class Port:
    """A served metrics port, and the counts of its process."""

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, _, port = address.rpartition(":")
        self.at, self.url, self.registry = (host, int(port)), f"http://{address}", registry

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.at, timeout=LONG_S)
        connection.sendall(sent)
        return connection

    def lost(self, why: Lost) -> float:
        return self.registry.get_sample_value("penstock_metrics_unanswered_total", {"why": why}) or 0

    def status(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=LONG_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    with (
        measuring() as process,
        served(process.registry, Target(file=tmp_path / "x.json", run="r", process="x")) as address,
    ):
        yield Port(address, process.registry)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nX-Slow: "]
)
@pytest.mark.parametrize("trickles", [False, True])
def test_a_head_that_is_late_ends_its_connection_however_often_a_byte_arrives(
    port: Port,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    sent: bytes,
    trickles: bool,
) -> None:
    monkeypatch.setattr(scrapes, "HEAD_S", 0.3)
    with port.connect(sent) as connection:
        connection.settimeout(0.05)

        def ended() -> bool:
            try:
                if trickles:
                    connection.sendall(b"x")
                return connection.recv(100) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        eventually_blocking(ended)
    assert eventually_blocking(lambda: port.lost(Lost.LATE)) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_connections_without_end_take_a_bounded_number_of_threads_and_every_scrape_is_answered(
    port: Port,
) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for number in range(4 * scrapes.MAX_CONNECTIONS):
            held.enter_context(port.connect(b"GET /metrics HTTP/1.1\r\n" if number % 2 else b""))
            if number % 8 == 0:
                assert port.status() == 200
        assert port.status() == 200
        assert threading.active_count() <= before + scrapes.MAX_CONNECTIONS
        assert port.lost(Lost.CROWDED) >= 3 * scrapes.MAX_CONNECTIONS


def test_a_client_that_leaves_in_the_middle_of_its_head_is_counted_and_not_logged(
    port: Port, capfd: pytest.CaptureFixture[str]
) -> None:
    port.connect(b"GET /metrics HTTP/1.1\r\nHost").close()
    assert eventually_blocking(lambda: port.lost(Lost.GONE)) == 1
    assert port.status() == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_head_that_is_too_long_ends_its_connection(port: Port) -> None:
    with port.connect(b"GET /metrics HTTP/1.1\r\n") as connection, contextlib.suppress(OSError):
        for _ in range(90):
            connection.sendall(b"X-Long: " + b"x" * 1000 + b"\r\n")
    assert eventually_blocking(lambda: port.lost(Lost.GONE)) == 1


def test_metrics_that_cannot_be_collected_are_status_500_and_counted(port: Port) -> None:
    class Broken:
        """A collector that fails once it is registered."""

        def describe(self) -> Iterable[Metric]:
            return []

        def collect(self) -> Iterable[Metric]:
            raise LookupError("no such row")

    broken = Broken()
    port.registry.register(broken)
    assert port.status() == 500
    port.registry.unregister(broken)
    assert port.status() == 200
    assert port.lost(Lost.FAILED) == 1
