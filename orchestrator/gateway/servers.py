"""The pool of rollout servers: which one a call goes to, and one long call made of segments.

A session stays with a server (rendezvous hash: its prefix cache), leaves it while it would wait there for long, and never notices that
one died or took new weights: the same ids, and what was sampled so far, go on under a fresh request id with what is left of the budget.

| produces | waits for | unblocked by |
|---|---|---|
| a finished action per call | a server whose gate is open | the server's keeper (`sync.py`): weights in, canary passed |
"""

import hashlib
import math
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import anyio
import numpy as np

from orchestrator.contracts.events import StepTimings, VersionSpan
from orchestrator.contracts.ids import Ids
from orchestrator.contracts.routes import Routed, Routes
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.problems import unavailable
from orchestrator.gateway.repetition import Repetition, Watch
from orchestrator.gateway.rollout_server import RolloutServer
from orchestrator.gateway.upstream import Generation, RolloutServerError, SamplingParams
from orchestrator.log import get

log = get(__name__)

MOST_BARREN = 8  # segments in a row without a token before a call gives up
BARREN_WAIT_S = 0.05
UNWATCHED = Repetition()
UNROUTED = Routed()


def nothing() -> Ids:
    """int32[0]."""
    return np.empty(0, dtype="<i4")


class PromptTooLong(Exception):
    """No server that is there takes the prompt. `capacity`: tokens of the longest that the one takes whose turn it was."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity


@dataclass(slots=True)
class Flight:
    """Where a call is right now, so that it can be given up. `abandoned` set: stop at the next chance, keep what there is."""

    server: RolloutServer | None = None
    home: RolloutServer | None = None  # that it was sent to last, between two segments too
    rid: str = ""
    abandoned: anyio.Event = field(default_factory=anyio.Event)
    _held_s: float = 0.0
    _held_since: float | None = None

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While the call waits for the platform, and nobody generates."""
        self._held_since = time.monotonic()
        try:
            yield
        finally:
            self._held_s, self._held_since = self.held_s, None

    @property
    def held_s(self) -> float:
        """Seconds so far that it was held."""
        now = time.monotonic()
        return self._held_s + (now - self._held_since if self._held_since is not None else 0.0)


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished action. Invariant: len(ids) == len(logprobs) == sum of the spans. `suspect`: a reply named another version than was
    pinned when its segment was sent. finish: stop | length | abort; `stop`: the stop string that ended it. `seen`: the context of the last
    segment as it was sent, and what came back on it; empty where nothing was sent. `segments`: replies that it was put together from.
    `repeats`: the repetition stop ended it. `routes`: int16[n, layers, top_k] of the positions from `routes_from` on, each as it was when
    the token behind it was sampled: fewer than there are positions where servers did not tell, more where the action was cut at its end;
    None: nobody told."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish: str
    stop: str | None
    suspect: bool
    timings: StepTimings
    seen: Ids = field(default_factory=nothing)
    segments: int = 1
    repeats: bool = False
    routes: Routes | None = None
    routes_from: int = 0


class Segments:
    """The action so far, and the routes from `routes_from` on.

    A segment brings the routes from the last token before it on: that one was sampled before, and is fed only now. What is generated again
    after an abort so has the routes of the weights that generated it.
    """

    def __init__(self) -> None:
        self.routes_from = 0
        self._routes: list[Routes] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[VersionSpan] = []
        self.suspect = False
        self.seen = nothing()
        self.count = 0

    def add(self, generation: Generation, pinned: int) -> bool:
        """Append one reply. False, and nothing is taken, when it comes from weights that have no version of ours, or an older one than
        was pinned: then the server was started anew behind our back."""
        labels = generation.labels
        if not all(label.isascii() and label.isdigit() and int(label) >= pinned for label in labels):
            return False
        at = len(self.ids)
        if generation.output_ids and generation.routes is not None:
            self._routes.append(generation.routes)
        self.count += bool(generation.output_ids)
        self.ids += generation.output_ids
        self.logprobs += generation.logprobs
        for span in generation.spans:
            self._span(int(span.version), at + span.start, at + span.end)
        self.suspect = self.suspect or any(int(label) != pinned for label in labels)
        return True

    @property
    def unrouted(self) -> int:
        """The first position whose routes are not known yet."""
        return self.routes_from + sum(map(len, self._routes))

    @property
    def routes(self) -> Routes | None:
        """Of the positions from `routes_from` on, as far as they were told; perhaps of some that `end_at` has forgotten."""
        return np.concatenate(self._routes) if self._routes else None

    def end_at(self, length: int) -> None:
        """Forget the tokens behind the first `length`."""
        over = len(self.ids) - length
        self.ids, self.logprobs = self.ids[:length], self.logprobs[:length]
        self.spans = [
            VersionSpan(span.version, span.start, min(span.end, length))
            for span in self.spans
            if span.start < length
        ]
        self.seen = self.seen[: len(self.seen) - over]

    def _span(self, version: int, start: int, end: int) -> None:
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version, start, end))


class ServerPool:
    """Every rollout server of the run. The last `reserved` serve calls of evaluations alone, each at the version that it asks for; without
    any, all serve all calls. `longest_routed`: tokens of the longest context that is asked for anew as a whole when other weights
    have computed its routes; None: routes are not recorded."""

    def __init__(
        self,
        servers: Sequence[RolloutServer],
        metrics: Metrics,
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
        self._untold: set[str] = set()  # URLs of servers that were warned about
        self._changed = anyio.Event()
        self._calls: Counter[str] = Counter()  # begun and not over, by the URL of the server that they are at
        for server in self.servers:
            server.changed = self._look_again

    def drain(self, urls: Collection[str]) -> None:
        """These get no new calls, the others may."""
        for server in self.servers:
            server.draining = server.url in urls
        self._look_again()

    def calls_at(self, url: str) -> int:
        """Calls that a server has begun and that are not over, between two segments too."""
        return self._calls[url]

    @property
    def reserved(self) -> Sequence[RolloutServer]:
        """Those that serve evaluations alone."""
        return self.servers[len(self.servers) - self._reserved :]

    @property
    def capacity(self) -> float:
        """Tokens of the longest prompt that every server takes to which a call may go; infinite where none says."""
        said = [
            server.capacity
            for server in self.servers
            if server.usable and not server.draining and server.capacity is not None
        ]
        return min(said, default=math.inf)

    def _look_again(self) -> None:
        """A gate opened, or will not: whoever waits for admission looks again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def generate(
        self,
        ids: Ids,
        params: SamplingParams,
        key: str,
        flight: Flight,
        rule: Repetition = UNWATCHED,
        routed: Routed = UNROUTED,
        version: int | None = None,
    ) -> Generated:
        """One action after `ids`, of which `routed` is known, by `version` where servers are reserved. Held while no server is ready. One
        that goes on at a server with less room than it had ends there by length. Raises PromptTooLong when no server that is there takes
        `ids`, RequestRefused when a server refuses the request itself, Problem 503 when requests keep coming back empty, or this
        gateway knows no server at all."""
        with self._counted(flight):
            return await self._generate(ids, params, key, flight, rule, routed, version)

    @contextmanager
    def _counted(self, flight: Flight) -> Iterator[None]:
        """At the end of a call it is at no server any more."""
        try:
            yield
        finally:
            self._move(flight, None)

    def _move(self, flight: Flight, server: RolloutServer | None) -> None:
        """A call is at `server` from here on."""
        if flight.home is not None:
            self._calls[flight.home.url] -= 1
        if server is not None:
            self._calls[server.url] += 1
        flight.home = server

    async def _generate(
        self,
        ids: Ids,
        params: SamplingParams,
        key: str,
        flight: Flight,
        rule: Repetition,
        routed: Routed,
        version: int | None,
    ) -> Generated:
        if not self.servers:
            raise unavailable("this gateway was started without a rollout server: name one with --server")
        begun = time.monotonic()
        queue_s, first_byte, barren = 0.0, None, 0
        so_far, watch, repeats = Segments(), Watch(rule), False
        while True:
            asked = time.monotonic()
            with flight.holding():
                server = await self._admit(key, flight, version, len(ids) + len(so_far.ids))
            queue_s += time.monotonic() - asked
            finish = None
            if server is None:
                break
            space = server.room(len(ids) + len(so_far.ids))
            if space <= 0:
                if so_far.ids:
                    break
                raise PromptTooLong(server.capacity or 0)
            self._move(flight, server)
            pinned, rid = server.version, uuid.uuid4().hex
            assert pinned is not None
            if not so_far.ids:
                anew = len(ids) <= (self._longest_routed or 0)
                so_far.routes_from = routed.first_wanted(pinned) if anew else routed.tokens
            flight.server, flight.rid = server, rid
            room = params.max_new_tokens - len(so_far.ids)
            limit = int(min(watch.segment(room), space))
            left = params if limit == params.max_new_tokens else replace(params, max_new_tokens=limit)
            sent = time.monotonic()
            context = with_more(ids, so_far.ids)
            generation = await server.send(context, left, rid, key, so_far.unrouted)
            flight.server = None
            if generation is not None and not server.owned():
                generation = _before_sync(server, generation, pinned, asked_for=flight.abandoned.is_set())
            if generation is not None:
                foreign = generation.labels - {str(pinned)}
                if foreign and server.version == pinned:
                    server.distrust(
                        f"a reply comes from the weights {', '.join(sorted(foreign))}, not {pinned}"
                    )
                if so_far.add(generation, pinned):
                    so_far.seen = with_more(generation.sent, generation.output_ids)
                    asked_for = self._longest_routed is not None and bool(generation.output_ids)
                    if asked_for and generation.routes is None:
                        self._miss_routes(server.url)
                else:
                    generation = None
            if generation is not None:
                finish = generation.finish
                queue_s += generation.timings.queue_s
                if first_byte is None and generation.output_ids:
                    first_byte = sent - begun + (generation.timings.first_token_s or 0.0) - queue_s
                ends_at = watch.hear(generation.logprobs)
                by_itself = finish.kind == "stop" and ends_at == len(so_far.ids)
                if ends_at is not None and not by_itself:
                    so_far.end_at(ends_at)
                    finish, repeats = None, True
                    break
                if finish.kind == "length" and len(generation.output_ids) == left.max_new_tokens < room:
                    finish = None  # a segment's end is not the action's
                    if flight.abandoned.is_set():
                        break
                    barren = 0
                    continue
                if finish.kind != "abort":
                    break
            if flight.abandoned.is_set():
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
        cut = finish is None or finish.kind == "abort"
        kind = "abort" if cut and flight.abandoned.is_set() else "length" if finish is None else finish.kind
        # Both from the call on, less what it waited until then: the first token lies inside the generation.
        spent = max(0.0, time.monotonic() - begun - queue_s)
        first_s = min(max(0.0, first_byte or 0.0), spent)
        return Generated(
            tuple(so_far.ids),
            tuple(so_far.logprobs),
            tuple(so_far.spans),
            kind,
            finish.matched if finish is not None and isinstance(finish.matched, str) else None,
            so_far.suspect,
            StepTimings(queue=queue_s, first_byte=first_s, generation=spent),
            so_far.seen,
            so_far.count,
            repeats,
            so_far.routes,
            so_far.routes_from,
        )

    async def abandon(self, flight: Flight) -> None:
        """Give a call up: what it has so far comes back as an aborted action."""
        flight.abandoned.set()
        server = flight.server  # the call may leave it while the server is being told
        if server is not None:
            try:
                await server.client.abort(flight.rid)
            except RolloutServerError as error:
                log.warning("server.abort_failed", server=server.url, error=str(error))

    def _miss_routes(self, url: str) -> None:
        """Routes were asked for, and none came."""
        self._metrics.routes_untold.labels(url).inc()
        if url not in self._untold:
            self._untold.add(url)
            log.warning(
                "server.tells_no_routes",
                server=url,
                consequence="tokens train with the experts that the trainer's router chooses",
                remedy="start it with --enable-return-routed-experts, or set trainer.routing_replay to false",
            )

    def _of(self, version: int | None) -> Sequence[RolloutServer]:
        """Where a call may go: a training call never to a reserved server, an evaluation's only to one that serves its version."""
        if not self._reserved:
            return self.servers
        if version is None:
            return self.servers[: -self._reserved]
        return [server for server in self.reserved if server.version == version]

    def _taking(
        self, version: int | None, home: RolloutServer | None, length: int
    ) -> Sequence[RolloutServer]:
        """Those that take a call of so many tokens: none that drains, but for one that has it already, where nobody else could go on with it;
        none without room, as long as another one has it."""
        servers = self._of(version)
        taking = [server for server in servers if not server.draining]
        if home is not None and home in servers and not any(server.usable for server in taking):
            return [home]
        roomy = [server for server in taking if server.room(length) > 0]
        return roomy if any(server.usable for server in roomy) else taking

    async def _admit(
        self, key: str, flight: Flight, version: int | None, length: int
    ) -> RolloutServer | None:
        """The server to send to, once there is one; None when the call is given up before."""
        while not flight.abandoned.is_set():
            changed, servers = self._changed, self._taking(version, flight.home, length)
            if (chosen := choose(servers, key, self._spill_s)) is not None:
                if chosen is not preferred(servers, key):
                    self._metrics.spilled.labels(chosen.url).inc()
                return chosen
            # While other servers are ready, a long sync is left behind; nothing announces that moment.
            others = any(server.ready for server in servers)
            await first_of(changed, flight.abandoned, within=self._spill_s if others else None)
        return None


def _before_sync(
    server: RolloutServer, generation: Generation, pinned: int, *, asked_for: bool
) -> Generation | None:
    """What to keep of a reply from a server whose weights another gateway changes. One that is broken off, though nobody here `asked_for`
    it, is what that one's pause left of it, all of the old weights; one of other weights waited there through the sync, where nobody here
    could pin them: it is asked for again."""
    foreign = generation.labels != {str(pinned)}
    if foreign or (generation.finish.kind == "abort" and not asked_for):
        server.overtaken(pinned)
    return None if foreign else generation


def with_more(ids: Ids, more: Sequence[int]) -> Ids:
    """int32[n]: `ids`, then `more`."""
    return np.concatenate([ids, np.asarray(more, dtype="<i4")]) if more else ids


def preferred(servers: Sequence[RolloutServer], key: str) -> RolloutServer | None:
    """Where the key's prefix is cached: the highest random weight among the servers that are there."""
    usable = [server for server in servers if server.usable]
    if not usable:
        return None
    return max(usable, key=lambda server: hashlib.sha256(f"{key}|{server.url}".encode()).digest())


def choose(servers: Sequence[RolloutServer], key: str, spill_s: float) -> RolloutServer | None:
    """The preferred server, or where the wait there is longer than `spill_s`, one with less than half of it. None: nothing may be
    sent yet."""
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
