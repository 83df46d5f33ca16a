"""One rollout server as the gateway sees it: its version, whether calls may be sent, how long they would wait.

| state | calls | ends with |
|---|---|---|
| ready: gate open at a version | are sent | a sync; doubt (`invalidate`); silence (`lost`) |
| syncing: gate closed, `syncing_since` set | are held for it | the end of the sync |
| away: neither | use other servers | its syncer, once it answers |

In each state the server may also be `draining`: its calls end there, new calls use other servers, and its weights are still updated.
If another gateway changes its weights, a call that comes back interrupted starts the sync here too (`interrupted_by_sync`).

A pause does not change the state: the route that checks whether a server is alive answers in every state.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from orchestrator.contracts.ids import Ids
from orchestrator.gateway.metrics import UpstreamMetrics
from orchestrator.gateway.servers.client import (
    Generation,
    Load,
    ModelInfo,
    RolloutServerBroken,
    RolloutServerClient,
    RolloutServerError,
    RolloutServerSilent,
    RolloutServerUnreachable,
    SamplingParams,
)
from orchestrator.gateway.servers.weights import KnownDigests, ReportedWeights
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured

log = get(__name__)

RECENT = 0.2  # weight of the newest call in the mean time that a call takes


@dataclass(slots=True, kw_only=True)
class ServerLoad:
    """The queue at a server: the numbers of its last answer, and the calls that we have sent since. `service_s`: mean time of a call
    without its wait."""

    waiting: int = 0
    running: int = 0
    slots: int = 0  # calls that it runs at once; 0: it does not report this
    ours: int = 0  # our own calls at that moment
    service_s: float = 0.0
    tokens: tuple[int, ...] = ()  # its numbers of tokens; empty: it does not report them all

    def update(self, load: Load, ours: int) -> None:
        """Take in a fresh answer of /v1/loads; `ours`: number of our calls at the server."""
        self.waiting, self.running = load.num_waiting_reqs or 0, load.num_running_reqs or 0
        self.slots, self.ours = load.max_running_requests or 0, ours
        # Numbers that change with every token that a server reads or generates.
        stirring = load.num_used_tokens, load.num_total_tokens, load.total_prefill_uncached_tokens
        tokens = tuple(number for number in stirring if number is not None)
        self.tokens = tokens if len(tokens) == len(stirring) else ()

    def served(self, seconds: float) -> None:
        """Take in the time of a call: `seconds` without its wait in the queue."""
        self.service_s += (seconds - self.service_s) * (RECENT if self.service_s else 1.0)

    def delay(self, ours: int) -> float:
        """Seconds that a call sent now would wait: the queue before it, divided by the rate at which calls end."""
        since = ours - self.ours
        free = max(0, self.slots - self.running) if self.slots else max(0, since)
        queue = self.waiting + since - (0 if self.waiting else free)
        return max(0, queue) * self.service_s / max(1, self.running)


class RolloutServer:
    """`version` is the version that it serves after a passed canary; None: unknown, so no call may be sent. `holds`: the weights that it reported
    when it was admitted; None: only its version is known. `digests`: those of the weights that it was given."""

    def __init__(self, client: RolloutServerClient, *, silence_s: float = 5.0) -> None:
        self.client = client
        self.url = client.base_url
        self.version: int | None = None
        self.holds: ReportedWeights | None = None
        self.digests = KnownDigests()
        self.gate_open = False
        self.syncing_since: float | None = None
        self.openings = 0
        self.capacity: int | None = None  # longest prompt in tokens; None: the server does not report a limit
        self.answers = True
        self.hangs = False  # it takes connections and does not answer
        self.draining = False  # a person requested that it gets no new calls
        self.in_flight: dict[str, anyio.CancelScope] = {}  # by request id
        self.broken_replies = 0  # to calls, so far
        self._landed = anyio.Event()  # set, and replaced, when a call has left it
        self.load = ServerLoad()
        self._stirred_at = 0.0  # when it was last seen to generate, or had nothing to generate
        self.attention = anyio.Event()  # set: the syncer should check it
        self.silence_s = silence_s
        # Whether only this gateway changes its weights.
        self.owned: Callable[[], bool] = lambda: True
        # Called when calls may be sent again, or must use another server.
        self.changed: Callable[[], None] = lambda: None
        # Why its capacity keeps it from getting calls; None: it does not.
        self.too_small: Callable[[], str | None] = lambda: None

    @property
    def ready(self) -> bool:
        """Whether calls may be sent."""
        return self.gate_open and self.version is not None

    @property
    def usable(self) -> bool:
        """Whether calls may be sent, or will be when a sync is over."""
        return self.ready or (self.syncing_since is not None and self.answers)

    @property
    def delay(self) -> float:
        """Seconds that a call sent now would wait. A sync is expected to last as long again as it has lasted so far."""
        if self.syncing_since is not None:
            return anyio.current_time() - self.syncing_since
        return self.load.delay(len(self.in_flight))

    @property
    def still_s(self) -> float:
        """Seconds in which it had calls, and nothing shows that it works on them: no reply, no change in its numbers of tokens. 0 for a server that
        does not report these numbers: there, long calls and a server that generates nothing look alike. Numbers that cannot be read now count
        as unchanged, and calls of other gateways only once the server's scheduler counts them."""
        busy = self.in_flight or self.load.running or self.load.waiting
        return anyio.current_time() - self._stirred_at if busy and self.load.tokens else 0.0

    def take_in(self, load: Load) -> None:
        """Take in a fresh answer of /v1/loads."""
        before, idle = self.load.tokens, not self.still_s
        self.load.update(load, len(self.in_flight))
        if idle or self.load.tokens != before:
            self.stirred()

    def stirred(self) -> None:
        """It generates, or has nothing to generate."""
        self._stirred_at = anyio.current_time()

    def room(self, length: int) -> float:
        """Tokens that fit after a prompt of `length`; at most 0: the server refuses the prompt itself."""
        return math.inf if self.capacity is None else self.capacity - length

    def hold(self) -> None:
        """Close the gate: calls wait for it."""
        self.gate_open = False
        if self.syncing_since is None:
            self.syncing_since = anyio.current_time()

    def admit(self, version: int, holds: ReportedWeights | None = None) -> None:
        """Open the gate. `holds`: its weights, as it tells them now."""
        self.version, self.gate_open, self.syncing_since = version, True, None
        self.holds = holds
        self.openings += 1
        self.stirred()
        self.changed()

    def shut(self) -> None:
        """Close the gate. Calls do not wait for it."""
        self.version, self.gate_open, self.syncing_since = None, False, None
        self.changed()

    def interrupted_by_sync(self, pinned: int) -> None:
        """Another gateway owns the server and paused it before this gateway read the row. Calls wait until the syncer finds that it runs again."""
        if self.ready and self.version == pinned:
            log.info("server.interrupted_by_sync", server=self.url, version=pinned)
            self.hold()
        self.attention.set()

    def invalidate(self, reason: str) -> None:
        """The server died or has other weights than expected. It gets no calls until its syncer has synced it again."""
        if self.ready:
            log.warning("server.invalidated", server=self.url, reason=reason)
        self.shut()
        self.attention.set()

    def compare(self, model_info: ModelInfo) -> None:
        """Compare the weights that it tells with those that it was admitted with."""
        found, expected = ReportedWeights.of(model_info), self.holds or ReportedWeights(str(self.version))
        fault = found.instead_of(expected)
        if fault is None:
            return
        if found.version == expected.version:
            self.reject(fault)
        else:  # its replies name the version of each token
            self.invalidate(f"it {fault}")

    def reject(self, fault: str) -> None:
        """It holds weights that were not given to it, under the version of others: as `lost`, although it answers. `fault`: the end of a sentence."""
        if self.ready:
            measured(UpstreamMetrics).wrong_weights.labels(self.url).inc()
        self.invalidate(
            f"the rollout server {self.url} {fault}; it gets no calls until it has been synced again"
        )
        self.cut_off()

    def stands_still(self) -> None:
        """It answers its checks, and neither its calls nor a canary: as `lost`, until it answers a canary."""
        self.invalidate(
            f"it answers its checks and has generated nothing for {self.still_s:.0f} s, although it has calls; it gets none until it answers a canary"
        )
        self.cut_off()

    def lost(self, error: RolloutServerError) -> None:
        """The server does not answer: as `invalidate`, and its calls continue on other servers."""
        reason = str(error)
        if self.answers:
            log.warning("server.lost", server=self.url, reason=reason, calls=len(self.in_flight))
        self.answers, self.hangs = False, isinstance(error, RolloutServerSilent)
        self.invalidate(reason)
        self.cut_off()

    def back(self) -> None:
        """The server answers again. This does not show which version it serves."""
        if not self.answers:
            log.info("server.back", server=self.url)
            self.answers = True
            self.attention.set()

    def cut_off(self) -> None:
        """Cancel every call at this server."""
        for scope in list(self.in_flight.values()):
            scope.cancel()

    async def measure(self) -> None:
        """Query the longest prompt: a server's memory may hold less than the model's context. Raises RolloutServerError, also for a server that
        holds so little that it gets no calls."""
        self.capacity = (await self.client.server_info()).max_req_input_len or None
        if (fault := self.too_small()) is not None:
            self.shut()
            raise RolloutServerBroken(self.url, fault)

    async def drained(self) -> None:
        """Wait until no call is in flight."""
        while self.in_flight:
            await self._landed.wait()

    async def send(
        self, ids: Ids, params: SamplingParams, rid: str, key: str, routes_from: int = 0
    ) -> Generation | None:
        """Send one segment and return its reply; None when it was lost or cancelled: send it again."""
        if not self.still_s:
            self.stirred()
        with anyio.CancelScope() as scope:
            self.in_flight[rid] = scope
            sent_at = time.monotonic()
            try:
                generation = await self.client.generate(
                    ids, params, rid=rid, routing_key=key, routes_from=routes_from
                )
                self.stirred()
                took_s = time.monotonic() - sent_at
                self.load.served(max(0.0, took_s - max(0.0, generation.timings.queue_s)))
                measured(UpstreamMetrics).call_s.labels(self.url).observe(took_s)
                return generation
            except RolloutServerError as error:
                measured(UpstreamMetrics).errors.labels(self.url, error.kind).inc()
                if not isinstance(error, (RolloutServerUnreachable, RolloutServerBroken)):
                    raise
                self.broken_replies += isinstance(error, RolloutServerBroken)
                await self._doubt(error)
            finally:
                del self.in_flight[rid]
                self._landed.set()
                self._landed = anyio.Event()
        return None

    async def _doubt(self, error: RolloutServerError) -> None:
        """After a failed call, query whether the server still serves its version: a connection may break, a request may fail on a sound server."""
        openings = self.openings
        try:
            info = await self.client.model_info(timeout=self.silence_s / 2)
        except RolloutServerUnreachable as gone:
            self.lost(gone)
            return
        except RolloutServerError:
            self.invalidate(str(error))
            return
        if self.ready and openings == self.openings:
            self.compare(info)
