"""One completion, from request to recorded step: replay, budget, place, generate, parse, commit.

A call runs in the gateway's task group, not in its harness's connection. Equal requests in flight share it. When the last waiting client
leaves, the gateway aborts the call at the rollout server and records it as undelivered.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.marks import BudgetKind, Finish, MarkReason
from orchestrator.contracts.spans import VersionSpan
from orchestrator.gateway.completions.offload import (
    SMALL,
    LargeRequests,
    blocks_event_loop,
    extent,
    texts,
    tools_of,
)
from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.completions.record import Recorder, auxiliary
from orchestrator.gateway.completions.stops import cut_at_stop
from orchestrator.gateway.messages.requests import CompletionRequest, Reply
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.problems import (
    Problem,
    budget_exhausted,
    session_over,
    unavailable,
    upstream_refused,
)
from orchestrator.gateway.problems import cut_off as cut_off_problem
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.servers.client import RequestRefused, SamplingParams
from orchestrator.gateway.servers.pool import PromptTooLong, ServerPool
from orchestrator.gateway.servers.repetition import Repetition
from orchestrator.gateway.servers.segmented import UNROUTED, UNWATCHED, Generated
from orchestrator.gateway.sessions.budgets import Budgets
from orchestrator.gateway.sessions.call import CompletionCall
from orchestrator.gateway.sessions.node import Node, Placement
from orchestrator.gateway.sessions.script import Script
from orchestrator.gateway.sessions.session import WAIT_REPLY, Session
from orchestrator.gateway.sessions.store import SessionStore
from orchestrator.runtime.log import get
from orchestrator.settings.config import SamplingSection
from orchestrator.settings.timeouts import timeouts
from orchestrator.trajectory.routes import Routed
from orchestrator.trajectory.waiting import Stretch

log = get(__name__)

TOO_MUCH = 2  # contexts: a text with more tokens is refused before rendering


class GenerationFailed(Exception):
    """An unexpected failure between the gateway and its rollout servers: the platform's, because only checked ids and parameters get there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCompletion:
    """One completion to generate, as `begin` prepared it after `steps` steps. `recorded`: the sampling parameters that its step is recorded with."""

    session: Session
    request: CompletionRequest
    placement: Placement
    params: SamplingParams
    recorded: dict[str, Any]
    call: CompletionCall
    steps: int

    @property
    def key(self) -> str:
        """The key by which a session stays with one rollout server and its prefix cache."""
        return f"{self.session.spec.rollout}:{self.session.spec.attempt}"


class CompletionService:
    """Runs calls. A dialect uses it like this:

    with completions.serving(session, call): reply = await call.result(); …write it…; completions.delivered(session, reply)
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
        metrics: GatewayMetrics,
        replay_hold_s: float,
        carried: int = sys.maxsize,
        large_requests: LargeRequests | None = None,
    ) -> None:
        self._tasks = tasks
        self.large_requests = large_requests or LargeRequests(tasks)
        self._renderer = renderer
        self._pool = pool
        self._recorder = recorder
        self._store = store
        self._sampling = sampling
        self._metrics = metrics
        self.budgets = Budgets(
            tasks=tasks,
            renderer=renderer,
            pool=pool,
            store=store,
            sampling=sampling,
            metrics=metrics,
            carried=carried,
        )
        self._replay_hold_s = replay_hold_s

    async def prepare(
        self, session: Session, request: CompletionRequest, size: int, *, counting: bool = False
    ) -> Placement | None:
        """The placement of a request of `size` bytes, found and rendered off the event loop; None for a request that costs little. Raises
        Problem 400 if its text is far longer than the context, or the session has made too many requests."""
        if size <= SMALL or request.digest in session.calls:
            return None
        session.check_open()
        forest, before = session.forest, len(session.forest.nodes)
        tools = self._shown(request)
        parent, consumed = forest.match(request.turns, tools, before)
        new = request.turns[consumed:] if self._renderer.extends else request.turns
        if not blocks_event_loop(new) and (parent is not None or tools_of(request) <= SMALL):
            return None
        is_auxiliary = counting or auxiliary(request, session.spec.auxiliary)
        again = request.digest in session.newest
        self.budgets.charge(session, aside=is_auxiliary, again=again)
        context = self.budgets.context_of(session)

        def work() -> Placement | int:
            maximum = TOO_MUCH * context
            if len(new) > context:
                return len(new)
            if extent(new) > maximum:
                found = self._renderer.measured((text for turn in new for text in texts(turn)), maximum)
                if found > maximum:
                    return found
            return forest.place(request.turns, request.tools, tools, before)

        # No budget refuses a repeated request: a program that repeats one must not stop its clock.
        placed = await self.large_requests.thread(session, work, waits=not again)
        session.check_open()
        if isinstance(placed, int):
            session.side_requests += placed // context
            raise self.budgets.too_long(session, is_auxiliary)
        session.side_requests += (len(placed.ids) - (0 if parent is None else parent.full_len)) // context
        return placed

    def begin(
        self, session: Session, request: CompletionRequest, placed: Placement | None = None
    ) -> CompletionCall:
        """Start, join or replay the call of `request`. Raises Problem before anything is generated (session over, budget, 503 when very many
        requests of the session wait for replies). `placed`: from `prepare`."""
        session.check_open()
        if session.waiting_reply >= WAIT_REPLY:
            raise unavailable(f"{WAIT_REPLY} requests of this session wait for their replies: try again")
        if (running := session.calls.get(request.digest)) is not None:
            self._metrics.replays.labels("coalesced").inc()
            return running
        if (recorded_node := self._recorded(session, request)) is not None:
            self._metrics.replays.labels("resumed").inc()
            session.requests += 1
            call = CompletionCall()
            timings = StepTimings(generation=recorded_node.generation_s, ended=recorded_node.ended_at)
            call.finish(_reply(recorded_node, timings, self._stopped(request, recorded_node), replayed=True))
            return call
        last = session.newest.get(request.digest)
        if (
            last is not None
            and last.finish != Finish.ABORT
            and (
                last.delivered is not True
                or (request.retries > 0 and request.digest not in session.newer_refused)
            )
        ):
            self._metrics.replays.labels("stored").inc()
            call = CompletionCall()
            # Nothing is generated now. A client that retries after a restart cannot know when it was.
            generating = ((now := time.monotonic()) - last.generation_s, now)
            call.finish(_reply(last, StepTimings(), self._stopped(request, last), (generating,)))
            return call
        session.requests += 1
        is_auxiliary = auxiliary(request, session.spec.auxiliary)
        self.budgets.check_turns(session, is_auxiliary)
        placement = placed or self._place(session, request)
        params, recorded = self.budgets.params(session, request, placement, is_auxiliary)
        self._metrics.left_out.inc(request.left_out)
        self._metrics.unknown_fields.inc(request.unknown)
        script_index = (
            None if session.script is None or is_auxiliary else self._next_scripted(session, session.script)
        )
        call = session.calls[request.digest] = CompletionCall(
            agent=request.agent, state=placement.ids, auxiliary=is_auxiliary, script_index=script_index
        )
        self._tasks.start_soon(
            self._run,
            PreparedCompletion(
                session=session,
                request=request,
                placement=placement,
                params=params,
                recorded=recorded,
                call=call,
                steps=len(session.forest.nodes),
            ),
        )
        return call

    def _recorded(self, session: Session, request: CompletionRequest) -> Node | None:
        """The step that an earlier lease recorded for `request`. Raises Problem 409 when the request has other ids than the step."""
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
        """Hold a request that is not on record until its agent's record is used up. Raises Problem 409 when it replaces a recorded request."""
        if session.replay is not None:
            await session.replay.used_up(request.agent, self._replay_hold_s)
            if session.replay.parted is not None:
                self._tasks.start_soon(self._store.save_progress, session)
            session.check_open()

    def count(self, session: Session, request: CompletionRequest, placed: Placement | None = None) -> int:
        """Tokens of the state that `request` would send; nothing is generated or recorded."""
        session.check_open()
        return len((placed or self._place(session, request)).ids)

    @contextmanager
    def serving(self, session: Session, call: CompletionCall) -> Iterator[None]:
        """Covers the time in which a harness waits for `call`. When the last harness leaves before the end, the call is aborted."""
        call.waiting += 1
        session.waiting_reply += 1
        try:
            yield
        finally:
            call.waiting -= 1
            session.waiting_reply -= 1
            if call.waiting == 0 and not call.done:
                session.calls = {k: c for k, c in session.calls.items() if c is not call}
                call.in_flight.times.left(time.monotonic())
                self._tasks.start_soon(self._pool.abandon, call.in_flight)
            elif call.succeeded and session.forest.nodes[call.step].delivered is False:
                self.undelivered(session, call.step)  # the harness left while the reply was being written

    async def cut_off(self, session: Session) -> None:
        """End the calls that harnesses wait for, because a clock has ended the attempt: what they have sampled is recorded with the mark
        `cut_off`, and the harnesses get Problem 409. Return when that is done, or after `timeouts.cut_off_s`. The next step of a task may go on with
        the session."""
        calls = [call for call in session.calls.values() if call.waiting]
        for call in calls:
            call.cut_off = True
            self._tasks.start_soon(self._pool.abandon, call.in_flight)
        with anyio.move_on_after(timeouts().cut_off_s):
            for call in calls:
                await call.over()
        log.info("session.cut_off", **session.ids, calls=len(calls), ended=sum(call.done for call in calls))

    def delivered(self, session: Session, reply: Reply) -> None:
        """The whole reply was written to a harness."""
        node = session.forest.nodes[reply.step]
        node.delivered = True
        session.account.replied(time.monotonic())
        # A retry received the reply that its first request did not receive.
        if MarkReason.UNDELIVERED in session.marks.get(node.idx, ()):
            session.marks[node.idx].discard(MarkReason.UNDELIVERED)
            if session.over is None:
                self._tasks.start_soon(self._store.save_progress, session)

    def undelivered(self, session: Session, step: int) -> None:
        """The reply of a step could not be written. The mark outlives this process, until a later request shows that the reply arrived."""
        if session.over is None:
            session.mark(session.forest.nodes[step], MarkReason.UNDELIVERED)
            self._tasks.start_soon(self._store.save_progress, session)

    def _place(self, session: Session, request: CompletionRequest, before: int | None = None) -> Placement:
        with session.working():
            return session.forest.place(request.turns, request.tools, self._shown(request), before)

    def _shown(self, request: CompletionRequest) -> str | None:
        """The digest of the tools in the prompt; None: it shows none."""
        has_tools = request.tools and self._renderer.tools_in_prompt
        return sha256(msgspec.json.encode(request.tools, order="deterministic")).hex() if has_tools else None

    def _stopped(self, request: CompletionRequest, node: Node) -> str | None:
        """The stop string of the request that ended a step."""
        if not request.stop or node.ended or node.finish != Finish.STOP:
            return None
        text = self._renderer.decode(node.action.tolist())
        return next((stop for stop in request.stop if stop in text), None)

    def _next_scripted(self, session: Session, script: Script) -> int:
        if (number := script.take()) is None:  # the remaining replies are held by calls that were aborted
            raise self.budgets.exhausted(session, BudgetKind.TURNS, session.turns)
        return number

    async def _run(self, completion: PreparedCompletion) -> None:
        session, call, request = completion.session, completion.call, completion.request
        self._metrics.open_calls.inc()
        outcome: Reply | Problem = unavailable("the gateway is stopping; try again")
        try:
            with call.scope:
                await self._after_record(session, request)
                call.in_flight.times = times = session.account.call(time.monotonic())
                if call.waiting == 0:
                    times.left(time.monotonic())
                outcome = await self._within_allowance(completion)
            if call.scope.cancelled_caught:
                outcome = session_over(session.over or "cancelled")
        except Problem as problem:
            outcome = problem.untraced()
        except PromptTooLong as error:
            outcome = self.budgets.exhausted(session, BudgetKind.CONTEXT, error.capacity, call.auxiliary)
        except RequestRefused as refused:
            outcome = upstream_refused(refused.message)
        except Exception as error:
            self._metrics.faults.labels("call").inc()
            log.exception("call.failed", rollout=session.spec.rollout, attempt=session.spec.attempt)
            # The content of the request may cause any other failure: it is not evidence against the platform.
            platform_fault = isinstance(error, OSError | GenerationFailed)
            outcome = Problem(
                500, "internal_error", "the gateway failed; nothing was recorded", ours=platform_fault
            )
        finally:
            self._metrics.open_calls.dec()
            call.in_flight.times.over(time.monotonic())
            if (
                call.script_index is not None
                and session.script is not None
                and not isinstance(outcome, Reply)
            ):
                session.script.put_back(call.script_index)
            if isinstance(outcome, Reply):
                session.failures.served(call)
            else:
                session.refused(request.digest, completion.steps)
                if outcome.ours:
                    session.failures.failed(call, outcome.message, time.monotonic())
            if session.calls.get(request.digest) is call:
                del session.calls[request.digest]
            call.finish(outcome)

    async def _within_allowance(self, completion: PreparedCompletion) -> Reply:
        """Reserve the tokens that the call may sample until its step is on record."""
        session, call, params = completion.session, completion.call, completion.params
        with call.in_flight.waiting():
            reserved = await session.allowance.take(params.max_new_tokens, lambda: session.sampled_tokens)
        auxiliary_reserved = 0
        try:
            if reserved == 0:
                total = session.spec.budget.max_total_tokens or 0
                raise self.budgets.exhausted(session, BudgetKind.TOKENS, total)
            if reserved < params.max_new_tokens:
                params = replace(params, max_new_tokens=reserved)
            if call.auxiliary:
                with call.in_flight.waiting():
                    auxiliary_reserved = await session.auxiliary_allowance.take(
                        reserved, lambda: session.auxiliary_tokens
                    )
                if auxiliary_reserved == 0:
                    raise budget_exhausted(
                        BudgetKind.AUXILIARY_TOKENS, session.spec.budget.max_auxiliary_tokens or 0
                    )
                params = replace(params, max_new_tokens=auxiliary_reserved)
            return await self._complete(replace(completion, params=params))
        finally:
            session.allowance.give_back(reserved)
            if auxiliary_reserved:
                session.auxiliary_allowance.give_back(auxiliary_reserved)

    async def _complete(self, completion: PreparedCompletion) -> Reply:
        """Generate, parse, record."""
        session, call, request = completion.session, completion.call, completion.request
        placement, params, recorded = completion.placement, completion.params, completion.recorded
        with call.in_flight.waiting():
            await self._recorder.room()
        if session.script is not None:
            generated = await self._demonstrated(completion, session.script)
        else:
            rule = Repetition(self._sampling.repetition_tokens, self._sampling.repetition_probability)
            generated = await self._generated(completion, params, rule, placement.routed)
        if request.stop and (generated.segments > 1 or generated.finish is Finish.LENGTH):
            generated = cut_at_stop(generated, request.stop, self._renderer.decode, self._renderer.stop_ids)
        if generated.repeats:
            self._metrics.repetitions.inc()
            recorded = {**recorded, "repetition_stop": True}
        waiting_s = (now := time.monotonic()) - call.in_flight.times.began - generated.timings.generation
        timings = msgspec.structs.replace(
            generated.timings, queue=max(0.0, waiting_s), ended=session.database_time(now)
        )
        generated = replace(generated, timings=timings)
        self._metrics.waiting_s.observe(generated.timings.queue)
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
            rule=request.rule,
        )
        cut_off = call.cut_off and generated.finish is Finish.ABORT
        node = await self._recorder.commit(
            session, request, placement, generated, parsed, recorded, cut_off=cut_off
        )
        if session.exhausted == BudgetKind.CONTEXT:
            session.exhausted = None  # the harness made room
            self._tasks.start_soon(self._store.save_progress, session)
        if call.waiting == 0 and not cut_off:
            self.undelivered(session, node.idx)
        elif session.marks.get(node.idx):
            self._tasks.start_soon(self._store.save_progress, session)
        if cut_off:
            session.failures.served(call)  # the platform has served it as long as the attempt lasted
            raise cut_off_problem()
        return _reply(node, generated.timings, generated.stop, generated.generating)

    async def _demonstrated(self, completion: PreparedCompletion, script: Script) -> Generated:
        """The reply of a demonstration, with the times of a real completion if the reply requests that."""
        call = completion.call
        scripted = self._scripted(
            script.turn(call.script_index, completion.request.turns), completion.params.max_new_tokens
        )
        if not script.generates(call.script_index):
            return scripted
        discarded = await self._generated_in_its_place(completion, len(scripted.ids))
        return replace(scripted, timings=discarded.timings, generating=discarded.generating)

    async def _generated_in_its_place(self, completion: PreparedCompletion, tokens: int) -> Generated:
        """`tokens` tokens on the same state, for the time that they take."""
        params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        return await self._generated(completion, params, UNWATCHED, UNROUTED)

    async def _generated(
        self, completion: PreparedCompletion, params: SamplingParams, rule: Repetition, routed: Routed
    ) -> Generated:
        """As `ServerPool.generate`. Raises GenerationFailed for any other failure there."""
        try:
            return await self._pool.generate(
                completion.placement.ids,
                params,
                completion.key,
                completion.call.in_flight,
                rule,
                routed,
                completion.session.spec.version,
            )
        except (Problem, PromptTooLong, RequestRefused):
            raise
        except Exception as error:  # `_run` counts and logs it
            raise GenerationFailed from error

    def _scripted(self, turn: Turn, room: int) -> Generated:
        """A demonstration's reply as the ids that the policy would have sampled."""
        ids = tuple(self._renderer.action(turn))
        if len(ids) > room:
            raise Problem(
                400,
                "script_too_long",
                f"the scripted reply has {len(ids)} tokens and {room} are left",
                param="scripted",
            )
        return Generated(
            ids=ids,
            logprobs=(0.0,) * len(ids),
            spans=(VersionSpan(0, 0, len(ids)),),
            finish=Finish.STOP,
            stop=None,
            suspect=False,
            timings=StepTimings(),
        )


def _reply(
    node: Node,
    timings: StepTimings,
    stopped: str | None,
    generating: Sequence[Stretch] = (),
    *,
    replayed: bool = False,
) -> Reply:
    now = time.monotonic()
    return Reply(
        step=node.idx,
        turn=node.reply,
        finish=node.finish,
        parse=node.parse,
        prompt_tokens=node.state_len,
        completion_tokens=len(node.action),
        timings=timings,
        stopped=stopped,
        replayed=replayed,
        generating=tuple((round(now - start, 6), round(now - end, 6)) for start, end in generating),
    )
