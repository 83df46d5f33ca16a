"""The current server of a call, and how long it has waited for the platform."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.trajectory.waiting import Account, CallTime


@dataclass(slots=True, kw_only=True)
class InFlight:
    """The current server of a call, so that the call can be aborted, and the attribution of its time (`times`). `abandoned` set: stop at the
    next chance and keep the tokens so far."""

    server: RolloutServer | None = None
    home: RolloutServer | None = None  # the server that it was sent to last, also between two segments
    avoided: RolloutServer | None = None  # its newest reply was broken
    rid: str | None = None  # of its newest request
    abandoned: anyio.Event = field(default_factory=anyio.Event)
    times: CallTime = field(default_factory=lambda: Account().call(time.monotonic()))
    _waiting_s: float = 0.0
    _waiting_since: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Covers the time in which the call waits for the platform and is not generated."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_s, self._waiting_since = self.waiting_s, None

    @property
    def waiting_s(self) -> float:
        """Seconds that it has waited so far."""
        now = time.monotonic()
        return self._waiting_s + (now - self._waiting_since if self._waiting_since is not None else 0.0)
