"""One long call made of segments: the tokens so far, the next request, and the end.

This module uses no server, no clock and no waiting: `ServerPool.generate` calls `next_request`, sends it and passes the reply to `accept`.

| a reply | then |
|---|---|
| ends by a stop token or string, or for lack of room | Done: stop, length |
| ends with a stop token, at the last place of its segment or interrupted | Done: stop |
| ends at the end of its segment | Continue with the next segment |
| completes the run of the repetition stop | Done: repetition; the tokens after the run are dropped |
| was interrupted (a weight sync, a retraction) | Continue with its tokens appended to the same ids |
| was lost, or comes from foreign weights | Continue with the same request |
| MAX_EMPTY_REPLIES in a row without a token | Done: no_answer |
| any, of an abandoned call | Done: abandoned, unless the action ended on its own |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.numbers import INT4
from orchestrator.contracts.spans import VersionSpan, cut
from orchestrator.gateway.servers.client import FinishReason, Generation, SamplingParams
from orchestrator.gateway.servers.repetition import Repetition, RepetitionDetector
from orchestrator.runtime.backoff import doubled
from orchestrator.trajectory.routes import Routed, Routes
from orchestrator.trajectory.waiting import Stretch

MAX_EMPTY_REPLIES = 8  # segments in a row without a token before a call fails
EMPTY_REPLY_WAIT_S = 0.05
UNWATCHED = Repetition()
UNROUTED = Routed()


def nothing() -> Ids:
    """int32[0]."""
    return np.empty(0, dtype="<i4")


def with_more(ids: Ids, more: Sequence[int]) -> Ids:
    """int32[n]: `ids`, then `more`."""
    return np.concatenate([ids, np.asarray(more, dtype="<i4")]) if more else ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A finished action. Invariant: len(ids) == len(logprobs) == sum of the spans. `suspect`: a reply named another version than was
    pinned when its segment was sent. `stop`: the stop string that ended it. `seen`: the context of the last
    segment as it was sent, and the reply to it; empty where nothing was sent. `segments`: number of replies that it consists of.
    `repeats`: the repetition stop ended it. `routes`: int16[n, layers, top_k] of the positions from `routes_from` on, each as it was when
    the next token was sampled. There are fewer routes than positions where servers did not send them, more where the action was cut at its
    end; None: no server sent any. `generating`: when its tokens were generated, `time.monotonic()`, without the time of lost replies. `weights`:
    version:digest of what generated it, where servers tell digests."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish: Finish
    stop: str | None
    suspect: bool
    timings: StepTimings
    seen: Ids = field(default_factory=nothing)
    segments: int = 1
    repeats: bool = False
    routes: Routes | None = None
    routes_from: int = 0
    generating: tuple[Stretch, ...] = ()
    weights: tuple[str, ...] = ()


class Segments:
    """The action so far, and the routes from `routes_from` on.

    A segment brings the routes from the last token before it on: that token was sampled before, and the model processes it only now. Tokens
    that are generated again after an abort therefore have the routes of the weights that generated them.
    """

    def __init__(self) -> None:
        self.routes_from = 0
        self._routes: list[Routes] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[VersionSpan] = []
        self.weights: set[str] = set()
        self.suspect = False
        self.seen = nothing()
        self.count = 0

    def add(self, generation: Generation, pinned: int) -> bool:
        """Append one reply. Return False, and append nothing, if it comes from weights without a version of ours, or with an older version
        than the pinned one: then the server was restarted without the gateway's knowledge."""
        if not belongs(generation, pinned):
            return False
        at = len(self.ids)
        if generation.output_ids and generation.routes is not None:
            self._routes.append(generation.routes)
        self.count += bool(generation.output_ids)
        self.ids += generation.output_ids
        self.logprobs += generation.logprobs
        for span in generation.spans:
            self._span(int(span.version), at + span.start, at + span.end)
        if generation.output_ids:
            self.weights |= {f"{int(version)}:{digest}" for version, digest in generation.weights if digest}
        self.suspect = self.suspect or any(int(label) != pinned for label in generation.labels)
        return True

    @property
    def unrouted(self) -> int:
        """The first position whose routes are not known yet."""
        return self.routes_from + sum(map(len, self._routes))

    @property
    def routes(self) -> Routes | None:
        """The routes of the positions from `routes_from` on, as far as servers sent them; perhaps also of tokens that `end_at` dropped."""
        return np.concatenate(self._routes) if self._routes else None

    def end_at(self, length: int) -> None:
        """Drop the tokens after the first `length`."""
        over = len(self.ids) - length
        self.ids, self.logprobs = self.ids[:length], self.logprobs[:length]
        self.spans = cut(self.spans, length)
        self.seen = self.seen[: len(self.seen) - over]

    def _span(self, version: int, start: int, end: int) -> None:
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version, start, end))


def belongs(generation: Generation, pinned: int) -> bool:
    """Whether every token comes from weights with a version of ours that is not older than the pinned one."""
    return all(
        label.isascii() and label.isdigit() and len(label) <= 10 and pinned <= int(label) <= INT4
        for label in generation.labels
    )


class Reason(StrEnum):
    """Why a call is over. no_room: the server that it continues on takes no more tokens; no_answer: too many replies in a row were empty."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"
    NO_ROOM = "no_room"
    ABANDONED = "abandoned"
    NO_ANSWER = "no_answer"


class Interruption(StrEnum):
    """Why a segment must be sent again."""

    ABORTED = "aborted"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRequest:
    """The request to send: `ids`, int32[n], with `params`, to weights of `version`, with routes from the position `routes_from` on. `left`:
    tokens that the whole action may still get; the segment requests `params.max_new_tokens` of them."""

    ids: Ids
    params: SamplingParams
    version: int
    routes_from: int
    left: int


@dataclass(frozen=True, slots=True)
class Continue:
    """Call `next_request` again after `pause_s` seconds. `resubmitted`: why the same work is sent again; None: it is not."""

    resubmitted: Interruption | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The call is over; there is nothing more to send."""

    reason: Reason
    resubmitted: Interruption | None = None


class SegmentedGeneration:
    """One action after `ids`; `routed`: the part of `ids` whose routes are known. `longest_routed`: the longest context, in tokens, whose routes
    are requested again as a whole when other weights computed them; 0: none. `began`: when the call arrived, on the clock of all times here.

    Invariant: between `next_request` and `accept` of its reply nothing changes; a refused reply leaves no trace in the action.
    """

    def __init__(
        self,
        ids: Ids,
        params: SamplingParams,
        *,
        rule: Repetition = UNWATCHED,
        routed: Routed = UNROUTED,
        longest_routed: int = 0,
        began: float = 0.0,
    ) -> None:
        self._ids = ids
        self._params = params
        self._routed = routed
        self._longest_routed = longest_routed
        self._began = began
        self._so_far = Segments()
        self._detector = RepetitionDetector(rule)
        self._request: SegmentRequest | None = None
        self._empty_replies = 0
        self._first_byte_s: float | None = None
        self._generating: list[Stretch] = []
        self._finish = Finish.LENGTH
        self._stop: str | None = None
        self._repeats = False
        self.newest: tuple[Stretch, ...] = ()
        """When the tokens of the newest reply were generated."""

    @property
    def length(self) -> int:
        """Tokens of the prompt and generated tokens so far."""
        return len(self._ids) + self.sampled

    @property
    def sampled(self) -> int:
        """Generated tokens so far."""
        return len(self._so_far.ids)

    def next_request(self, version: int, room: float) -> SegmentRequest | Done:
        """The request to send to a server of weights `version` that takes `room` more tokens."""
        if room <= 0:
            return self._done(Reason.NO_ROOM)
        if not self.sampled:
            all_routed = len(self._ids) <= self._longest_routed
            self._so_far.routes_from = (
                self._routed.first_wanted(version) if all_routed else self._routed.tokens
            )
        remaining = self._params.max_new_tokens - self.sampled
        limit = int(min(self._detector.segment(remaining), room))
        unchanged = limit == self._params.max_new_tokens
        self._request = SegmentRequest(
            ids=with_more(self._ids, self._so_far.ids),
            params=self._params if unchanged else replace(self._params, max_new_tokens=limit),
            version=version,
            routes_from=self._so_far.unrouted,
            left=remaining,
        )
        return self._request

    def accept(
        self, reply: Generation | None, *, sent: float, now: float, abandoned: bool = False
    ) -> Continue | Done:
        """Take in the reply to the last request, sent at `sent`; None: it was lost. `abandoned`: the call was abandoned before the reply came."""
        request = self._request
        assert request is not None, "a reply follows a request"
        self._request = None
        if reply is not None and not self._so_far.add(reply, request.version):
            reply = None
        self.newest = _generating(reply, sent, now)
        self._generating += self.newest
        if reply is not None and (end := self._ended(reply, request, abandoned=abandoned)) is not None:
            return end
        if abandoned:
            return self.give_up()
        if self.sampled >= self._params.max_new_tokens:  # interrupted exactly at the limit
            return self._done(Reason.LENGTH)
        if reply is not None and reply.finish.kind is Finish.LENGTH:
            self._empty_replies = 0
            return Continue()
        return self._again(reply)

    def give_up(self) -> Done:
        """End an abandoned call: its tokens so far are an aborted action."""
        return self._done(Reason.ABANDONED, Finish.ABORT)

    def result(self, now: float) -> Generated:
        """The finished action. All time outside the generation is waiting. The time to the first token is part of the generation."""
        so_far = self._so_far
        generation_s = sum(end - start for start, end in self._generating)
        waiting_s = max(0.0, now - self._began - generation_s)
        first_s = min(max(0.0, self._first_byte_s or 0.0), generation_s)
        return Generated(
            ids=tuple(so_far.ids),
            logprobs=tuple(so_far.logprobs),
            spans=tuple(so_far.spans),
            finish=self._finish,
            stop=self._stop,
            suspect=so_far.suspect,
            timings=StepTimings(queue=waiting_s, first_byte=first_s, generation=generation_s),
            seen=so_far.seen,
            segments=so_far.count,
            repeats=self._repeats,
            routes=so_far.routes,
            routes_from=so_far.routes_from,
            generating=tuple(self._generating),
            weights=tuple(sorted(so_far.weights)),
        )

    def _ended(self, reply: Generation, request: SegmentRequest, *, abandoned: bool) -> Done | None:
        """How the action ends with this reply; None: it does not end."""
        self._so_far.seen = with_more(reply.sent, reply.output_ids)
        finish = FinishReason(Finish.STOP) if self._ends_with_stop_token(reply) else reply.finish
        if self._first_byte_s is None and reply.output_ids:
            self._first_byte_s = (reply.timings.first_token_s or 0.0) - reply.timings.queue_s
        ends_at = self._detector.feed(reply.logprobs)
        stopped = finish.kind is Finish.STOP and ends_at == self.sampled
        if ends_at is not None and not stopped:
            self._so_far.end_at(ends_at)
            self._repeats = True
            return self._done(Reason.REPETITION, Finish.ABORT if abandoned else Finish.LENGTH)
        requested = request.params.max_new_tokens
        segment_is_full = finish.kind is Finish.LENGTH and len(reply.output_ids) == requested < request.left
        if finish.kind is Finish.ABORT or segment_is_full:
            return None
        self._stop = finish.matched if isinstance(finish.matched, str) else None
        return self._done(Reason(finish.kind), finish.kind)

    def _ends_with_stop_token(self, reply: Generation) -> bool:
        """Whether the action is complete though its server names another reason: servers check the length, and interruptions, first."""
        params = self._params
        return (
            reply.finish.kind is not Finish.STOP
            and not params.ignore_eos
            and bool(reply.output_ids)
            and reply.output_ids[-1] in params.stop_token_ids
        )

    def _again(self, reply: Generation | None) -> Continue | Done:
        """The outcome after a reply that was interrupted or lost."""
        cause = Interruption.LOST if reply is None else Interruption.ABORTED
        self._empty_replies = 0 if reply is not None and reply.output_ids else self._empty_replies + 1
        if self._empty_replies >= MAX_EMPTY_REPLIES:
            return Done(Reason.NO_ANSWER, cause)
        pause_s = doubled(EMPTY_REPLY_WAIT_S, self._empty_replies) if self._empty_replies > 1 else 0.0
        return Continue(cause, pause_s)

    def _done(self, reason: Reason, finish: Finish = Finish.LENGTH) -> Done:
        self._finish = finish
        return Done(reason)


def _generating(reply: Generation | None, sent: float, now: float) -> tuple[Stretch, ...]:
    """When a segment that was sent at `sent` and ended at `now` was generated. A server reports how long the segment was in its queue, not when;
    the queue time is taken as the beginning. A segment that was lost, or interrupted before its first token, was only waiting."""
    if reply is None or (reply.finish.kind is Finish.ABORT and not reply.output_ids):
        return ()
    start = sent + min(max(0.0, reply.timings.queue_s), now - sent)
    return ((start, now),) if start < now else ()
