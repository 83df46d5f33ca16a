"""One core message can end only itself: the guard of loops over what anyone may send. Messages of streams become dead letters instead
(`roles.consume`, `runner.assignments`)."""

from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.bus.base import BusError
from orchestrator.contracts.errors import ServiceError
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import BusMetrics, measured

log = get(__name__)


@contextmanager
def apart(kind: str, *, subject: str) -> Iterator[None]:
    """Handle one message in the block. An error drops it, counted and logged; only what the platform lacks (BusError, ServiceError) is raised."""
    try:
        yield
    except (BusError, ServiceError):
        raise
    except Exception as error:  # noqa: BLE001  # counted and logged: one message can end only itself
        measured(BusMetrics).unread.labels(kind).inc()
        log.warning("message.dropped", kind=kind, subject=subject[:200], error=repr(error)[:500])
