"""The URLs of a run's own embedded services by which no other program of the machine can be taken for them.

A shell may hold another URL of the same service, with a port (`penstock env`): it is replaced, because the port of a dead server is free to take.
"""

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats_server import earlier_nats_urls, recorded_nats_url
from orchestrator.deploy.embedded.postgres_cluster import recorded_tcp_url, recorded_url
from orchestrator.runtime.unreachable import of_directory, remember


def embedded_postgres(layout: RunLayout, url: str) -> str | None:
    """Its URL over the Unix socket, if `url` is one of its URLs or empty. None: `url` is another's, or it was never started."""
    own = recorded_url(layout.postgres)
    return _own(layout, own) if url in ("", own, recorded_tcp_url(layout.postgres)) else None


def embedded_nats(layout: RunLayout, url: str) -> str | None:
    """Its URL by the file with its present port, if `url` is one of its URLs or empty. None: as above."""
    own = recorded_nats_url(layout.nats)
    return _own(layout, own) if url in ("", own, *earlier_nats_urls(layout.nats)) else None


def _own(layout: RunLayout, url: str | None) -> str | None:
    return remember(url, of_directory(layout.root.parent)) if url else None
