"""The pool of rollout servers: it chooses the server of a call, and runs one long call as segments.

A session stays with a server (rendezvous hash: its prefix cache) and leaves it while the wait there is long. It does not notice that a server
died or took new weights: the same ids, and the tokens sampled so far, continue under a fresh request id with the rest of the budget.

| produces | waits for | unblocked by |
|---|---|---|
| a finished action per call | a server whose gate is open | the server's syncer (`weight_sync.py`): weights in, canary passed |
"""

import hashlib
import math
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median_high

import anyio

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.problems import unavailable
from orchestrator.gateway.servers.client import Generation, RolloutServerError, SamplingParams
from orchestrator.gateway.servers.in_flight import InFlight
from orchestrator.gateway.servers.repetition import Repetition
from orchestrator.gateway.servers.segmented import (
    UNROUTED,
    UNWATCHED,
    Continue,
    Done,
    Generated,
    Reason,
    SegmentedGeneration,
    belongs,
)
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.runtime.log import get
from orchestrator.trajectory.routes import Routed

log = get(__name__)

MIN_PROMPT = 64  # tokens; no conversation of an agent fits into fewer
FAR = 32
"""A server whose longest prompt is more than that many times shorter than the usual one gets no calls: it came up without memory. The shortest of
all bounds the context of every session, also of those whose calls run elsewhere. Servers that differ by less are taken as meant."""


class PromptTooLong(Exception):
    """No available server takes the prompt. `capacity`: the longest prompt of the chosen server, in tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity


class ServerPool:
    """Every rollout server of the run. The last `reserved` servers serve only calls of evaluations, each at the version that it needs; without
    reserved servers, all serve all calls. `longest_routed`: the longest context, in tokens, whose routes are requested again as a whole when
    other weights computed them; None: routes are not recorded."""

    def __init__(
        self,
        servers: Sequence[RolloutServer],
        metrics: GatewayMetrics,
        *,
        spill_s: float = 2.0,
        longest_routed: int | None = None,
        reserved: int = 0,
    ) -> None:
        self.servers = list(servers)
        self._reserved = reserved
        self._metrics = metrics
        self._spill_s = spill_s
        self._longest_routed = longest_routed
        self._without_routes: set[str] = set()  # URLs of servers that were warned about
        self._changed = anyio.Event()
        self._calls: Counter[str] = Counter()  # open calls, by the URL of their server
        for server in self.servers:
            server.changed = self._server_changed
            server.too_small = partial(self._too_small, server)

    def drain(self, urls: Collection[str]) -> None:
        """Send no new calls to these servers; others may get new calls."""
        for server in self.servers:
            server.draining = server.url in urls
        self._wake_waiting()

    def calls_at(self, url: str) -> int:
        """Open calls at a server, also those between two segments."""
        return self._calls[url]

    @property
    def reserved(self) -> Sequence[RolloutServer]:
        """The servers that serve only evaluations."""
        return self.servers[len(self.servers) - self._reserved :]

    @property
    def capacity(self) -> float:
        """The longest prompt, in tokens, that every server open to calls takes; infinite where no server reports a limit."""
        reported = [
            server.capacity
            for server in self.servers
            if server.usable
            and not server.draining
            and server.capacity is not None
            and server.capacity >= self._least(server)
        ]
        return min(reported, default=math.inf)

    def _usual(self, server: RolloutServer) -> int:
        """The longest prompt of the middle one of the servers that serve the same calls, or will after a sync; 0 if none reports it."""
        peers = (
            self.reserved if server in self.reserved else self.servers[: len(self.servers) - self._reserved]
        )
        known = [
            each.capacity for each in peers if each.usable and each.openings and each.capacity is not None
        ]
        return median_high(known) if known else 0

    def _least(self, server: RolloutServer) -> int:
        """The longest prompt, in tokens, below which a server gets no calls."""
        return max(MIN_PROMPT, -(-self._usual(server) // FAR))

    def _too_small(self, server: RolloutServer) -> str | None:
        """Why a server's memory keeps it from getting calls: the end of a sentence; None: it does not."""
        if server.capacity is None or server.capacity >= self._least(server):
            return None
        found = f"it takes prompts of {server.capacity:,} tokens at most (max_req_input_len)"
        if server.capacity < MIN_PROMPT:
            return f"{found}, too few for any conversation: give it more memory, or a longer context"
        return f"{found}, and the run's other servers take {self._usual(server):,}: give it memory and a context like theirs"

    def _server_changed(self) -> None:
        """A gate opened or will not open. A server that was admitted before the others were known may be too small among them."""
        for server in self.servers:
            if server.ready and (fault := self._too_small(server)) is not None:
                server.invalidate(fault)
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Wake calls that wait for admission: a gate opened or will not open, so they choose again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def generate(
        self,
        ids: Ids,
        params: SamplingParams,
        key: str,
        in_flight: InFlight,
        rule: Repetition = UNWATCHED,
        routed: Routed = UNROUTED,
        version: int | None = None,
    ) -> Generated:
        """One action after `ids`; `routed`: the part of `ids` whose routes are known; `version`: where servers are reserved, the version to
        use. The call is held while no server is ready. If it moves to a server with less room, it ends there by length when the room is used up.
        Raises PromptTooLong when no available server takes `ids`, RequestRefused when a server refuses the request itself, Problem 503 when
        requests keep coming back empty, or when this gateway has no server."""
        if not self.servers:
            raise unavailable("this gateway was started without a rollout server: name one with --server")
        segmented = SegmentedGeneration(
            ids,
            params,
            rule=rule,
            routed=routed,
            longest_routed=self._longest_routed or 0,
            began=time.monotonic(),
        )
        with self._counted(in_flight):
            while True:
                with in_flight.waiting():
                    server = await self._admit(key, in_flight, version, segmented.length)
                outcome = (
                    segmented.give_up()
                    if server is None
                    else await self._segment(segmented, server, key, in_flight)
                )
                if outcome.resubmitted is not None:
                    self._metrics.resubmitted.labels(outcome.resubmitted).inc()
                if isinstance(outcome, Done):
                    break
                if outcome.pause_s:
                    await anyio.sleep(outcome.pause_s)
        if outcome.reason is Reason.NO_ANSWER:
            raise unavailable("every rollout server that was tried failed; try again")
        return segmented.result(time.monotonic())

    async def _segment(
        self, segmented: SegmentedGeneration, server: RolloutServer, key: str, in_flight: InFlight
    ) -> Continue | Done:
        """Send the next segment to `server` and take in its reply."""
        assert server.version is not None
        request = segmented.next_request(server.version, server.room(segmented.length))
        if isinstance(request, Done):
            if not segmented.sampled:
                raise PromptTooLong(server.capacity or 0)
            return request
        self._move(in_flight, server)
        rid = uuid.uuid4().hex
        in_flight.server, in_flight.rid = server, rid
        sent_at, broken = time.monotonic(), server.broken_replies
        in_flight.times.requested(sent_at)
        reply = await server.send(request.ids, request.params, rid, key, request.routes_from)
        in_flight.server = None
        in_flight.avoided = server if reply is None and server.broken_replies > broken else None
        abandoned = in_flight.abandoned.is_set()
        if reply is not None:
            reply = self._checked(server, reply, request.version, abandoned=abandoned)
        now = time.monotonic()
        outcome = segmented.accept(reply, sent=sent_at, now=now, abandoned=abandoned)
        in_flight.times.answered(now, segmented.newest)
        return outcome

    def _checked(
        self, server: RolloutServer, reply: Generation, pinned: int, *, abandoned: bool
    ) -> Generation | None:
        """The usable part of a reply; None if there is none. The reply may also show that another gateway's sync interrupted the server, that it
        serves other weights than it should, or that it sends no routes. A reply of weights that were not given to the server is like a lost one: no
        step may be recorded under a version that did not generate it."""
        if not server.owned() and _before_sync(server, reply, pinned, abandoned=abandoned) is None:
            return None
        if (fault := server.digests.foreign(reply)) is not None:
            server.reject(fault)
            return None
        foreign = reply.labels - {str(pinned)}
        if foreign and server.version == pinned:
            server.invalidate(f"a reply comes from the weights {quoted(sorted(foreign))}, not {pinned}")
        routes_expected = self._longest_routed is not None and bool(reply.output_ids)
        if routes_expected and reply.routes is None and belongs(reply, pinned):
            self._miss_routes(server.url)
        return reply

    @contextmanager
    def _counted(self, in_flight: InFlight) -> Iterator[None]:
        """Count the call at its server; at its end, remove it from the count."""
        try:
            yield
        finally:
            self._move(in_flight, None)

    def _move(self, in_flight: InFlight, server: RolloutServer | None) -> None:
        """Count the call at `server` from now on."""
        if in_flight.home is not None:
            self._calls[in_flight.home.url] -= 1
        if server is not None:
            self._calls[server.url] += 1
        in_flight.home = server

    async def abandon(self, in_flight: InFlight) -> None:
        """Abandon a call: its tokens so far come back as an aborted action."""
        in_flight.abandoned.set()
        server = in_flight.server  # the call may leave it while the abort is sent
        if server is not None:
            try:
                await server.client.abort(in_flight.rid)
            except RolloutServerError as error:
                log.warning("server.abort_failed", server=server.url, error=str(error))

    def _miss_routes(self, url: str) -> None:
        """Report that a reply has no routes although they were requested."""
        self._metrics.routes_missing.labels(url).inc()
        if url not in self._without_routes:
            self._without_routes.add(url)
            log.warning(
                "server.routes_missing",
                server=url,
                consequence="tokens train with the experts that the trainer's router chooses",
                remedy="start it with --enable-return-routed-experts, or begin a new run with trainer.routing_replay = false",
            )

    def _of(self, version: int | None) -> Sequence[RolloutServer]:
        """The servers that a call may use. A training call never uses a reserved server, an evaluation's call only one that serves its version."""
        if not self._reserved:
            return self.servers
        if version is None:
            return self.servers[: -self._reserved]
        return [server for server in self.reserved if server.version == version]

    def _taking(
        self, version: int | None, home: RolloutServer | None, length: int
    ) -> Sequence[RolloutServer]:
        """The servers that take a call of `length` tokens. A draining server is left out, unless it has the call already and no other server
        could continue it. A server without room is left out as long as another one has room."""
        servers = self._of(version)
        available = [server for server in servers if not server.draining]
        if home is not None and home in servers and not any(server.usable for server in available):
            return [home]
        with_capacity = [server for server in available if server.room(length) > 0]
        return with_capacity if any(server.usable for server in with_capacity) else available

    async def _admit(
        self, key: str, in_flight: InFlight, version: int | None, length: int
    ) -> RolloutServer | None:
        """Wait for a server to send to and return it; None when the call is abandoned before."""
        while not in_flight.abandoned.is_set():
            changed, servers = self._changed, self._taking(version, in_flight.home, length)
            others = [server for server in servers if server is not in_flight.avoided]
            if any(server.ready for server in others):  # they may answer what the avoided one cannot
                servers = others
            if (chosen := choose(servers, key, self._spill_s)) is not None:
                if chosen is not preferred(servers, key):
                    self._metrics.spilled.labels(chosen.url).inc()
                return chosen
            # While other servers are ready, a call leaves a server with a long sync. No event marks that moment, so a timeout is used.
            other_ready = any(server.ready for server in servers)
            await first_of(changed, in_flight.abandoned, within=self._spill_s if other_ready else None)
        return None


def _before_sync(
    server: RolloutServer, generation: Generation, pinned: int, *, abandoned: bool
) -> Generation | None:
    """The usable part of a reply from a server whose weights another gateway changes. If the reply was aborted without a request from here
    (`abandoned`), that gateway's pause interrupted it, and its tokens are all of the old weights. If it comes from other weights, the request
    waited at the server through the sync, where this gateway could not pin a version; the segment is then requested again."""
    foreign = generation.labels != {str(pinned)}
    if foreign or (generation.finish.kind is Finish.ABORT and not abandoned):
        server.interrupted_by_sync(pinned)
    return None if foreign else generation


def preferred(servers: Sequence[RolloutServer], key: str) -> RolloutServer | None:
    """The server that caches the key's prefix: the highest random weight among the available servers."""
    usable = [server for server in servers if server.usable]
    if not usable:
        return None
    return max(usable, key=lambda server: hashlib.sha256(f"{key}|{server.url}".encode()).digest())


def choose(servers: Sequence[RolloutServer], key: str, spill_s: float) -> RolloutServer | None:
    """The preferred server. If the wait there is longer than `spill_s`, a server with less than half of that wait. None: no server may
    be used yet."""
    first = preferred(servers, key)
    if first is None:
        return None
    if (delay := first.delay) > spill_s:
        best = min(
            (server for server in servers if server.ready), key=lambda server: server.delay, default=None
        )
        if best is not None and 2 * best.delay < delay:
            return best
    return first if first.ready else None


async def first_of(*events: anyio.Event, within: float | None) -> None:
    """Return when one of `events` is set, or after `within` seconds."""
    with anyio.move_on_after(within):
        async with anyio.create_task_group() as tasks:

            async def wait(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            for event in events:
                tasks.start_soon(wait, event)
