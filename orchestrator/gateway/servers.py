"""The pool of rollout servers: which one a call goes to, and one long call made of segments.

A session stays with a server (rendezvous hash: its prefix cache), spills to another when that one's queue is deep, and never notices that
one died or took new weights: the same ids, and what was sampled so far, go on under a fresh request id with what is left of the budget.

| produces | waits for | unblocked by |
|---|---|---|
| a finished action per call | a server whose gate is open | the server's keeper (`sync.py`): weights in, canary passed |
"""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio

from orchestrator.contracts.events import StepTimings, VersionSpan
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.problems import unavailable
from orchestrator.gateway.upstream import (
    Generation,
    RolloutServerBroken,
    RolloutServerClient,
    RolloutServerError,
    RolloutServerUnreachable,
    SamplingParams,
)
from orchestrator.log import get

log = get(__name__)

SPILL_DEPTH = 64  # calls in flight at the preferred server above which another one is looked at
MOST_BARREN = 8  # segments in a row without a token before a call gives up
BARREN_WAIT_S = 0.05


class RolloutServer:
    """One server and its gate. `version` is what it serves after a passed canary; None: unknown, so nothing may be sent."""

    def __init__(self, client: RolloutServerClient) -> None:
        self.client = client
        self.url = client.base_url
        self.version: int | None = None
        self.gate_open = False
        self.flights: dict[str, anyio.CancelScope] = {}  # by request id
        self.attention = anyio.Event()  # set: the keeper should look

    @property
    def ready(self) -> bool:
        """Whether calls may be sent."""
        return self.gate_open and self.version is not None

    def distrust(self, reason: str) -> None:
        """It died or is not what we think: nothing is sent until its keeper has synced it again."""
        if self.version is not None:
            log.warning("server.distrusted", server=self.url, reason=reason)
        self.version, self.gate_open = None, False
        self.attention.set()

    async def drained(self) -> None:
        """Wait until nothing is in flight."""
        while self.flights:
            await anyio.sleep(0.005)

    async def send(self, ids: Sequence[int], params: SamplingParams, rid: str, key: str) -> Generation | None:
        """One segment; None when the server was lost, or a sync cut the request off: send it again."""
        with anyio.CancelScope() as scope:
            self.flights[rid] = scope
            try:
                return await self.client.generate(ids, params, rid=rid, routing_key=key)
            except (RolloutServerUnreachable, RolloutServerBroken) as error:
                self.distrust(str(error))
            finally:
                del self.flights[rid]
        return None


@dataclass(slots=True)
class Flight:
    """Where a call is right now, so that it can be given up. `abandoned`: stop at the next chance, keep what there is."""

    server: RolloutServer | None = None
    rid: str = ""
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished action. Invariant: len(ids) == len(logprobs) == sum of the spans. `suspect`: a reply named another version than was
    pinned when its segment was sent. finish: stop | length | abort; `stop`: the stop string that ended it."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish: str
    stop: str | None
    suspect: bool
    timings: StepTimings


class Segments:
    """The action so far."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[VersionSpan] = []
        self.suspect = False

    def add(self, generation: Generation, pinned: int) -> bool:
        """Append one reply. False, and nothing is taken, when it comes from weights that have no version of ours."""
        labels = [span.version for span in generation.spans] or [generation.weight_version]
        if not all(label.isascii() and label.isdigit() for label in labels):
            return False
        at = len(self.ids)
        self.ids += generation.output_ids
        self.logprobs += generation.logprobs
        for span in generation.spans:
            self._span(int(span.version), at + span.start, at + span.end)
        self.suspect = self.suspect or any(int(label) != pinned for label in labels)
        return True

    def _span(self, version: int, start: int, end: int) -> None:
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version, start, end))


class ServerPool:
    """Every rollout server of the run."""

    def __init__(self, servers: Sequence[RolloutServer], metrics: Metrics) -> None:
        self.servers = list(servers)
        self._metrics = metrics
        self._changed = anyio.Event()

    def changed(self) -> None:
        """A gate opened: whoever waits for admission looks again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def generate(
        self, ids: Sequence[int], params: SamplingParams, key: str, flight: Flight
    ) -> Generated:
        """One action after `ids`. Held while no server is ready. Raises RequestRefused when a server refuses the request itself,
        Problem 503 when requests keep coming back empty, or this gateway knows no server at all."""
        if not self.servers:
            raise unavailable("this gateway was started without a rollout server: name one with --server")
        begun = anyio.current_time()
        queue_s, first_byte, barren = 0.0, None, 0
        so_far = Segments()
        while True:
            asked = anyio.current_time()
            server = await self._admit(key)
            queue_s += anyio.current_time() - asked
            pinned, rid = server.version, uuid.uuid4().hex
            assert pinned is not None
            flight.server, flight.rid = server, rid
            left = replace(params, max_new_tokens=params.max_new_tokens - len(so_far.ids))
            sent = anyio.current_time()
            generation = await server.send([*ids, *so_far.ids], left, rid, key)
            flight.server = None
            if generation is not None and not so_far.add(generation, pinned):
                server.distrust(f"a reply has the weight version {generation.weight_version!r}")
                generation = None
            finish = generation.finish if generation is not None else None
            if generation is not None:
                queue_s += generation.timings.queue_s
                if first_byte is None and generation.output_ids:
                    first_byte = sent - begun + (generation.timings.first_token_s or 0.0)
            if finish is not None and finish.kind != "abort":
                break
            if flight.abandoned:
                break
            if len(so_far.ids) >= params.max_new_tokens:
                finish = None  # cut exactly at the limit
                break
            barren = 0 if generation is not None and generation.output_ids else barren + 1
            self._metrics.resubmitted.labels("aborted" if generation is not None else "lost").inc()
            if barren >= MOST_BARREN:
                raise unavailable("every rollout server that was tried failed; try again")
            if barren > 1:
                await anyio.sleep(BARREN_WAIT_S * 2**barren)
        kind = "abort" if flight.abandoned and (finish is None or finish.kind == "abort") else None
        kind = kind or (finish.kind if finish is not None else "length")
        total = anyio.current_time() - begun
        return Generated(
            tuple(so_far.ids),
            tuple(so_far.logprobs),
            tuple(so_far.spans),
            kind,
            finish.matched if finish is not None and isinstance(finish.matched, str) else None,
            so_far.suspect,
            StepTimings(queue=queue_s, first_byte=first_byte or 0.0, generation=max(0.0, total - queue_s)),
        )

    async def abandon(self, flight: Flight) -> None:
        """Give a call up: what it has so far comes back as an aborted action."""
        flight.abandoned = True
        server = flight.server  # the call may leave it while the server is being told
        if server is not None:
            try:
                await server.client.abort(flight.rid)
            except RolloutServerError as error:
                log.warning("server.abort_failed", server=server.url, error=str(error))

    async def _admit(self, key: str) -> RolloutServer:
        while True:
            waiting = self._changed
            ready = [server for server in self.servers if server.ready]
            if ready:
                return choose(ready, key)
            await waiting.wait()


def choose(ready: Sequence[RolloutServer], key: str) -> RolloutServer:
    """The server that the key prefers, or the emptiest one when that is full and another has less than half of its queue."""
    preferred = max(ready, key=lambda server: hashlib.sha256(f"{key}|{server.url}".encode()).digest())
    emptiest = min(ready, key=lambda server: len(server.flights))
    if len(preferred.flights) >= SPILL_DEPTH and 2 * len(emptiest.flights) < len(preferred.flights):
        return emptiest
    return preferred
