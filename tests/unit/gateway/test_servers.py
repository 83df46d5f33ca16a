"""Giving a call up while it is on its way to a rollout server."""

from dataclasses import dataclass
from typing import cast

import pytest

from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.rollout_server import RolloutServer
from orchestrator.gateway.servers import Flight, ServerPool
from orchestrator.gateway.upstream.errors import RolloutServerUnreachable

pytestmark = pytest.mark.anyio


@dataclass
class Dying:
    """A server that is gone: its call has come back with nothing before it can be told to stop."""

    flight: Flight
    url: str = "http://127.0.0.1:1"
    told: str = ""

    @property
    def client(self) -> "Dying":
        return self

    async def abort(self, rid: str) -> None:
        self.told = rid
        self.flight.server = None
        raise RolloutServerUnreachable(self.url, "refused")


async def test_a_call_may_leave_its_dying_server_while_it_is_given_up() -> None:
    flight = Flight(rid="r")
    server = Dying(flight)
    flight.server = cast(RolloutServer, server)
    await ServerPool([], Metrics()).abandon(flight)
    assert flight.abandoned.is_set() and server.told == "r"
