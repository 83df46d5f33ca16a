"""One rollout server as the gateway sees it: what it serves, whether calls may be sent, how long they would wait.

| state | calls | becomes another by |
|---|---|---|
| ready: gate open at a version | are sent | a sync; doubt (`distrust`); silence (`lost`) |
| syncing: gate closed, `held_since` set | are held for it | the end of the sync |
| away: neither | go elsewhere | its keeper, once it answers |

In any of them it may be `draining`: those that it has end there, new ones go elsewhere, and its weights follow all the same.
Where another gateway changes its weights, a call that comes back broken off begins its sync here too (`overtaken`).

A pause is no reason to leave this table: whether a server is there is asked by a route that answers in every state.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from orchestrator.contracts.ids import Ids
from orchestrator.gateway.metrics import UpstreamMetrics
from orchestrator.gateway.upstream import (
    Generation,
    RolloutServerBroken,
    RolloutServerClient,
    RolloutServerError,
    RolloutServerUnreachable,
    SamplingParams,
)
from orchestrator.log import get
from orchestrator.metrics import measured

log = get(__name__)

RECENT = 0.2  # weight of the newest call in the mean time that a call takes


@dataclass(slots=True)
class Load:
    """The queue at a server: what it said when it was last looked at, and what we have sent since. `service_s`: mean time of a call
    without its wait."""

    waiting: int = 0
    running: int = 0
    slots: int = 0  # calls that it runs at once; 0: it does not say
    ours: int = 0  # our own calls at that moment
    service_s: float = 0.0

    def told(self, load: Mapping[str, Any], ours: int) -> None:
        """A fresh answer of /v1/loads, while `ours` calls of ours are there."""
        numbers = (load.get(key) for key in ("num_waiting_reqs", "num_running_reqs", "max_running_requests"))
        self.waiting, self.running, self.slots = (n if isinstance(n, int) else 0 for n in numbers)
        self.ours = ours

    def served(self, seconds: float) -> None:
        """A call took `seconds`, its wait in the queue apart."""
        self.service_s += (seconds - self.service_s) * (RECENT if self.service_s else 1.0)

    def delay(self, ours: int) -> float:
        """Seconds that a call sent now would wait: the queue before it, divided by the rate at which calls end."""
        since = ours - self.ours
        free = max(0, self.slots - self.running) if self.slots else max(0, since)
        queue = self.waiting + since - (0 if self.waiting else free)
        return max(0, queue) * self.service_s / max(1, self.running)


class RolloutServer:
    """`version` is what it serves after a passed canary; None: unknown, so nothing may be sent."""

    def __init__(self, client: RolloutServerClient, *, silence_s: float = 5.0) -> None:
        self.client = client
        self.url = client.base_url
        self.version: int | None = None
        self.gate_open = False
        self.held_since: float | None = None
        self.openings = 0
        self.capacity: int | None = None  # tokens of the longest prompt that it takes; None: it does not say
        self.answers = True
        self.draining = False  # a person wants it to get no new calls
        self.flights: dict[str, anyio.CancelScope] = {}  # by request id
        self._landed = anyio.Event()  # set, and replaced, when a call has left it
        self.load = Load()
        self.attention = anyio.Event()  # set: the keeper should look
        self.silence_s = silence_s
        self.owned: Callable[[], bool] = lambda: (
            True
        )  # whether this gateway changes its weights, and no other
        self.changed: Callable[[], None] = lambda: None  # told when calls may be sent again, or go elsewhere

    @property
    def ready(self) -> bool:
        """Whether calls may be sent."""
        return self.gate_open and self.version is not None

    @property
    def usable(self) -> bool:
        """Whether calls may be sent, or will be when a sync is over."""
        return self.ready or (self.held_since is not None and self.answers)

    @property
    def delay(self) -> float:
        """Seconds that a call sent now would wait. A sync is taken to last as long again as it has already."""
        if self.held_since is not None:
            return anyio.current_time() - self.held_since
        return self.load.delay(len(self.flights))

    def room(self, length: int) -> float:
        """Tokens that may follow a prompt of `length`, in all that it takes; at most 0: it refuses the prompt itself."""
        return math.inf if self.capacity is None else self.capacity - length

    def hold(self) -> None:
        """Close the gate: calls wait for it."""
        self.gate_open = False
        if self.held_since is None:
            self.held_since = anyio.current_time()

    def admit(self, version: int) -> None:
        """Open the gate."""
        self.version, self.gate_open, self.held_since = version, True, None
        self.openings += 1
        self.changed()

    def shut(self) -> None:
        """Close the gate, and let nobody wait for it."""
        self.version, self.gate_open, self.held_since = None, False, None
        self.changed()

    def overtaken(self, pinned: int) -> None:
        """Its owner, another gateway, has paused it before the row was read here: calls wait until its keeper finds that it runs again."""
        if self.ready and self.version == pinned:
            log.info("server.overtaken", server=self.url, version=pinned)
            self.hold()
        self.attention.set()

    def distrust(self, reason: str) -> None:
        """It died or is not what we think: nothing is sent until its keeper has synced it again."""
        if self.ready:
            log.warning("server.distrusted", server=self.url, reason=reason)
        self.shut()
        self.attention.set()

    def lost(self, reason: str) -> None:
        """It does not answer: as `distrust`, and the calls that it has go on elsewhere."""
        if self.answers:
            log.warning("server.lost", server=self.url, reason=reason, calls=len(self.flights))
        self.answers = False
        self.distrust(reason)
        self.cut_off()

    def back(self) -> None:
        """It answers; what it serves is another question."""
        if not self.answers:
            log.info("server.back", server=self.url)
            self.answers = True
            self.attention.set()

    def cut_off(self) -> None:
        """Take back every call that it has."""
        for scope in list(self.flights.values()):
            scope.cancel()

    async def measure(self) -> None:
        """Ask how long a prompt may be: a server's memory may hold less than the model's context. Raises RolloutServerError."""
        longest = (await self.client.server_info()).get("max_req_input_len")
        self.capacity = longest if isinstance(longest, int) and longest > 0 else None

    async def drained(self) -> None:
        """Wait until nothing is in flight."""
        while self.flights:
            await self._landed.wait()

    async def send(
        self, ids: Ids, params: SamplingParams, rid: str, key: str, routes_from: int = 0
    ) -> Generation | None:
        """One segment; None when it was lost on the way, or cut off: send it again."""
        with anyio.CancelScope() as scope:
            self.flights[rid] = scope
            sent = time.monotonic()
            try:
                generation = await self.client.generate(
                    ids, params, rid=rid, routing_key=key, routes_from=routes_from
                )
                took = time.monotonic() - sent
                self.load.served(took - generation.timings.queue_s)
                measured(UpstreamMetrics).call_s.labels(self.url).observe(took)
                return generation
            except RolloutServerError as error:
                measured(UpstreamMetrics).errors.labels(self.url, error.kind).inc()
                if not isinstance(error, (RolloutServerUnreachable, RolloutServerBroken)):
                    raise
                await self._doubt(error)
            finally:
                del self.flights[rid]
                self._landed.set()
                self._landed = anyio.Event()
        return None

    async def _doubt(self, error: RolloutServerError) -> None:
        """A call failed. One connection may break, and one request may be too much for a sound server: ask whether it still serves."""
        openings, version = self.openings, self.version
        try:
            label = (await self.client.model_info(timeout=self.silence_s / 2)).get("weight_version")
        except RolloutServerUnreachable:
            self.lost(str(error))
            return
        except RolloutServerError:
            self.distrust(str(error))
            return
        if openings == self.openings and label != str(version):
            self.distrust(f"{error}; it serves the weights {label!r}")
