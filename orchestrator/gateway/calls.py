"""One completion, from request to recorded step: replay, budget, place, generate, parse, commit.

A call runs in the gateway's task group, not in its harness's connection: equal requests in flight share it, and when the last one that
waits is gone it is given up upstream, and recorded as undelivered.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from orchestrator.config import SamplingSection
from orchestrator.contracts.events import StepTimings, VersionSpan
from orchestrator.contracts.ids import sha256
from orchestrator.gateway.forest import Node, Placement
from orchestrator.gateway.messages import Turn
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.parse import parse_action
from orchestrator.gateway.problems import (
    Problem,
    budget_exhausted,
    session_over,
    unavailable,
    upstream_refused,
)
from orchestrator.gateway.record import Recorder, auxiliary
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.repetition import Repetition
from orchestrator.gateway.requests import CompletionRequest, Reply
from orchestrator.gateway.script import Script
from orchestrator.gateway.servers import Flight, Generated, PromptTooLong, ServerPool
from orchestrator.gateway.sessions import UNDELIVERED, Session
from orchestrator.gateway.stops import cut_at_stop
from orchestrator.gateway.store import SessionStore
from orchestrator.gateway.upstream import CONTEXT_KEPT, RequestRefused, SamplingParams
from orchestrator.log import get

log = get(__name__)

# A call that is given up costs no turn: clients break off and ask again. Who does nothing else must end as well.
ASKED_PER_TURN = 8


class Call:
    """A completion under way or done. `result` waits for it."""

    def __init__(self, session: Session, *, auxiliary: bool = False, said: int | None = None) -> None:
        self.session = session
        self.auxiliary = auxiliary
        self.said = said  # the number of its reply in a script
        self.flight = Flight()
        self.scope = anyio.CancelScope()
        self.waiting = 0
        self._done = anyio.Event()
        self._reply: Reply | None = None
        self._problem: Problem | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def succeeded(self) -> bool:
        """Whether it is done and has a reply."""
        return self._reply is not None

    @property
    def step(self) -> Node:
        """The step of a call that succeeded."""
        assert self._reply is not None
        return self.session.forest.nodes[self._reply.step]

    def finish(self, outcome: Reply | Problem) -> None:
        """Set the outcome, once."""
        if isinstance(outcome, Problem):
            self._problem = outcome
        else:
            self._reply = outcome
        self._done.set()

    async def result(self) -> Reply:
        """The reply; raises the call's Problem."""
        await self._done.wait()
        if self._problem is not None:
            raise self._problem
        assert self._reply is not None
        return self._reply

    async def wait(self, seconds: float) -> bool:
        """Whether it is done within `seconds`."""
        with anyio.move_on_after(seconds):
            await self._done.wait()
        return self.done


class Calls:
    """Makes calls. What a dialect does with one:

    with calls.serving(call): reply = await call.result(); …write it…; calls.delivered(session, reply)
    """

    def __init__(
        self,
        *,
        tasks: TaskGroup,
        renderer: Renderer,
        pool: ServerPool,
        recorder: Recorder,
        store: SessionStore,
        sampling: SamplingSection,
        metrics: Metrics,
        replay_hold_s: float,
    ) -> None:
        self._tasks = tasks
        self._renderer = renderer
        self._pool = pool
        self._recorder = recorder
        self._store = store
        self._sampling = sampling
        self._metrics = metrics
        self._replay_hold_s = replay_hold_s

    def begin(self, session: Session, request: CompletionRequest) -> Call:
        """Start, join or replay the call of `request`. Raises Problem before anything was generated (session over, budget)."""
        session.check_open()
        if (running := session.calls.get(request.digest)) is not None:
            self._metrics.replays.labels("coalesced").inc()
            return running
        if (again := self._recorded(session, request)) is not None:
            self._metrics.replays.labels("resumed").inc()
            session.requests += 1
            call = Call(session)
            timings = StepTimings(generation=again.generation_s)
            call.finish(_reply(again, timings, self._stopped(request, again), replayed=True))
            return call
        last = session.newest.get(request.digest)
        if (
            last is not None
            and last.finish != "abort"
            and (last.delivered is not True or request.retries > 0)
        ):
            self._metrics.replays.labels("stored").inc()
            call = Call(session)
            call.finish(_reply(last, StepTimings(), self._stopped(request, last)))
            return call
        session.requests += 1
        aside = auxiliary(request, session.terms.auxiliary)
        self._check_turns(session, aside)
        placement = self._place(session, request)
        params, recorded = self._params(session, request, placement, aside)
        self._metrics.left_out.inc(request.left_out)
        said = None if session.script is None or aside else self._next_scripted(session, session.script)
        call = session.calls[request.digest] = Call(session, auxiliary=aside, said=said)
        self._tasks.start_soon(self._run, call, request, placement, params, recorded)
        return call

    def _recorded(self, session: Session, request: CompletionRequest) -> Node | None:
        """The step that an earlier lease recorded for `request`. Raises Problem 409 when its ids are not those."""
        replay = session.replay
        if replay is None:
            return None
        node = replay.repeated(request)
        if node is None and replay.open:
            node = replay.take(request, partial(self._place, session, request))
            if node is not None or replay.parted is not None:
                self._tasks.start_soon(self._store.save_progress, session)
            session.check_open()
        return node

    async def _after_record(self, session: Session, request: CompletionRequest) -> None:
        """Hold a request that is not on record until its agent's record is used up. Raises Problem 409 when it came in its place."""
        if session.replay is not None:
            await session.replay.used_up(request.agent, self._replay_hold_s)
            if session.replay.parted is not None:
                self._tasks.start_soon(self._store.save_progress, session)
            session.check_open()

    def count(self, session: Session, request: CompletionRequest) -> int:
        """Tokens of the state that `request` would send; nothing is generated or recorded."""
        session.check_open()
        return len(self._place(session, request).ids)

    @contextmanager
    def serving(self, call: Call) -> Iterator[None]:
        """While a harness waits for `call`. When the last one leaves before the end, the call is given up."""
        call.waiting += 1
        try:
            yield
        finally:
            call.waiting -= 1
            if call.waiting == 0 and not call.done:
                call.session.calls = {k: c for k, c in call.session.calls.items() if c is not call}
                self._tasks.start_soon(self._pool.abandon, call.flight)
            elif call.succeeded and call.step.delivered is False:
                self.undelivered(call.session, call.step.idx)  # it left while the reply was being written

    def delivered(self, session: Session, reply: Reply) -> None:
        """The whole reply was written to a harness."""
        node = session.forest.nodes[reply.step]
        node.delivered = True
        session.last_reply_at = time.monotonic()
        if UNDELIVERED in session.marks.get(node.idx, ()):  # a retry got what its first request did not
            session.marks[node.idx].discard(UNDELIVERED)
            if session.over is None:
                self._tasks.start_soon(self._store.save_progress, session)

    def undelivered(self, session: Session, step: int) -> None:
        """The reply of a step could not be written: remembered beyond this process, until a later request shows that it came through."""
        if session.over is None:
            session.mark(session.forest.nodes[step], UNDELIVERED)
            self._tasks.start_soon(self._store.save_progress, session)

    def _place(self, session: Session, request: CompletionRequest, before: int | None = None) -> Placement:
        shown = request.tools and self._renderer.tools_in_prompt
        tools = sha256(msgspec.json.encode(request.tools, order="deterministic")).hex() if shown else ""
        return session.forest.place(request.turns, request.tools, tools, before)

    def _stopped(self, request: CompletionRequest, node: Node) -> str | None:
        """The stop string of the request that ended a step."""
        if not request.stop or node.ended or node.finish != "stop":
            return None
        text = self._renderer.decode(node.action.tolist())
        return next((stop for stop in request.stop if stop in text), None)

    def _check_turns(self, session: Session, aside: bool) -> None:
        """Raise Problem 400 when no call is left. One that is not of the conversation (`aside`) is no turn, as long as there are not many."""
        budget = session.terms.budget
        script = session.terms.script
        limit = budget.max_turns if script is None else min(budget.max_turns, len(script))
        asked = len(session.forest.nodes) + len(session.calls)
        turns = session.turns + sum(not call.auxiliary for call in session.calls.values())
        if (turns >= limit and not aside) or asked >= ASKED_PER_TURN * limit:
            raise self._exhausted(session, "turns", limit, aside)
        if budget.max_total_tokens is not None and session.sampled_tokens >= budget.max_total_tokens:
            raise self._exhausted(session, "tokens", budget.max_total_tokens)

    def _next_scripted(self, session: Session, script: Script) -> int:
        if (
            number := script.take()
        ) is None:  # those that are left are being said to calls that were given up
            raise self._exhausted(session, "turns", session.turns)
        return number

    def _exhausted(self, session: Session, which: str, limit: int, aside: bool = False) -> Problem:
        """The refusal; what is refused `aside` of the conversation does not end it."""
        if session.exhausted is None and not aside:
            session.exhausted = which
            self._tasks.start_soon(self._store.save_progress, session)
        return budget_exhausted(which, limit)

    def _params(
        self, session: Session, request: CompletionRequest, placement: Placement, aside: bool
    ) -> tuple[SamplingParams, dict[str, Any]]:
        """(what is sent, what is recorded). The run's parameters override the harness's; only the limit goes down, and stops are kept."""
        budget = session.terms.budget
        context = int(min(budget.max_context, self._renderer.context - CONTEXT_KEPT, self._pool.capacity))
        room = context - len(placement.ids)
        if room <= 0:
            raise self._exhausted(session, "context", context, aside)
        values: dict[str, Any] = {
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "max_new_tokens": self._sampling.max_new_tokens,
            **session.terms.sampling,
        }
        if request.max_tokens is not None:
            values["max_new_tokens"] = min(values["max_new_tokens"], request.max_tokens)
        limits = [room]
        if session.terms.script is None:
            limits.append(int(values["max_new_tokens"]))
        if budget.max_total_tokens is not None:
            limits.append(budget.max_total_tokens - session.sampled_tokens)
        seed = values.get("seed")
        params = SamplingParams(
            max_new_tokens=min(limits),
            temperature=float(values["temperature"]),
            top_p=float(values["top_p"]),
            top_k=int(values["top_k"]),
            stop=request.stop,
            stop_token_ids=tuple(sorted(self._renderer.stop_ids)),
            seed=None if seed is None else (int(seed) + 7919 * len(session.forest.nodes)) % 2**31,
        )
        recorded = {**values, "stop": list(request.stop)} if request.stop else values
        if not request.calls_allowed:
            recorded = {**recorded, "tool_choice": "none"}
        return params, {"scripted": True} if session.terms.script is not None else recorded

    async def _run(
        self,
        call: Call,
        request: CompletionRequest,
        placement: Placement,
        params: SamplingParams,
        recorded: dict[str, Any],
    ) -> None:
        session = call.session
        self._metrics.open_calls.inc()
        outcome: Reply | Problem = unavailable("the gateway is stopping; try again")
        try:
            with call.scope:
                await self._after_record(session, request)
                outcome = await self._within_allowance(call, request, placement, params, recorded)
            if call.scope.cancelled_caught:
                outcome = session_over(session.over or "cancelled")
        except Problem as problem:
            outcome = problem
        except PromptTooLong as error:
            outcome = self._exhausted(session, "context", error.capacity, call.auxiliary)
        except RequestRefused as refused:
            outcome = upstream_refused(refused.message)
        except Exception:
            self._metrics.faults.labels("call").inc()
            log.exception("call.failed", rollout=session.terms.rollout, attempt=session.terms.attempt)
            outcome = Problem(500, "internal_error", "the gateway failed; nothing was recorded")
        finally:
            self._metrics.open_calls.dec()
            if call.said is not None and session.script is not None and not isinstance(outcome, Reply):
                session.script.put_back(call.said)
            if isinstance(outcome, Reply):
                session.failing = None
            elif outcome.status >= 500:
                session.failing = outcome.message
            if session.calls.get(request.digest) is call:
                del session.calls[request.digest]
            call.finish(outcome)

    async def _within_allowance(
        self,
        call: Call,
        request: CompletionRequest,
        placement: Placement,
        params: SamplingParams,
        recorded: dict[str, Any],
    ) -> Reply:
        session = call.session
        with call.flight.holding():
            most = await session.allowance.take(params.max_new_tokens, lambda: session.sampled_tokens)
        try:
            if most == 0:
                total = session.terms.budget.max_total_tokens or 0
                raise self._exhausted(session, "tokens", total)
            if most < params.max_new_tokens:
                params = replace(params, max_new_tokens=most)
            return await self._complete(call, request, placement, params, recorded)
        finally:
            session.allowance.give_back(most)

    async def _complete(
        self,
        call: Call,
        request: CompletionRequest,
        placement: Placement,
        params: SamplingParams,
        recorded: dict[str, Any],
    ) -> Reply:
        session, terms = call.session, call.session.terms
        with call.flight.holding():
            await self._recorder.room()
        held = call.flight.held_s
        if session.script is not None:
            turn = session.script.turn(call.said, request.turns)
            generated = self._scripted(turn, params.max_new_tokens)
        else:
            key = f"{terms.rollout}:{terms.attempt}"
            rule = Repetition(self._sampling.repetition_tokens, self._sampling.repetition_probability)
            generated = await self._pool.generate(
                placement.ids, params, key, call.flight, rule, placement.routed, terms.version
            )
        if generated.segments > 1 and request.stop:
            generated = cut_at_stop(generated, request.stop, self._renderer.decode, self._renderer.stop_ids)
        if generated.repeats:
            self._metrics.repetitions.inc()
            recorded = {**recorded, "repetition_stop": True}
        if held:
            timings = msgspec.structs.replace(generated.timings, queue=generated.timings.queue + held)
            generated = replace(generated, timings=timings)
        session.queued_s += generated.timings.queue
        self._metrics.queue_s.observe(generated.timings.queue)
        self._metrics.first_byte_s.observe(generated.timings.first_byte)
        self._metrics.generation_s.observe(generated.timings.generation)
        self._metrics.state_tokens.inc(len(placement.ids))
        if not generated.ids:
            raise Problem(499, "abandoned", "the request was given up before anything was sampled")
        parsed = parse_action(
            self._renderer,
            generated.ids,
            request.tools,
            stop=generated.stop,
            calls_allowed=request.calls_allowed,
        )
        node = await self._recorder.commit(session, request, placement, generated, parsed, recorded)
        if session.exhausted == "context":
            session.exhausted = None  # the harness made room
            self._tasks.start_soon(self._store.save_progress, session)
        if call.waiting == 0:
            self.undelivered(session, node.idx)
        elif session.marks.get(node.idx):
            self._tasks.start_soon(self._store.save_progress, session)
        return _reply(node, generated.timings, generated.stop)

    def _scripted(self, turn: Turn, room: int) -> Generated:
        """A demonstration's reply in the ids that the policy would have sampled."""
        ids = tuple(self._renderer.action(turn))
        if len(ids) > room:
            raise Problem(
                400,
                "script_too_long",
                f"the scripted reply has {len(ids)} tokens and {room} are left",
                "scripted",
            )
        return Generated(
            ids, (0.0,) * len(ids), (VersionSpan(0, 0, len(ids)),), "stop", None, False, StepTimings()
        )


def _reply(node: Node, timings: StepTimings, stopped: str | None, *, replayed: bool = False) -> Reply:
    return Reply(
        node.idx,
        node.reply,
        node.finish,
        node.parse,
        node.state_len,
        len(node.action),
        timings,
        stopped,
        replayed,
    )
