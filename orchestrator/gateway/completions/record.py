"""A finished action becomes a recorded step: durable in the journal, then in the forest, and only then served."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import anyio
import msgspec
import numpy as np

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.courier import Courier
from orchestrator.bus.journal import JournalFull
from orchestrator.contracts.events import MAX_WEIGHTS, StepRecorded, StepRoutes, StepTimings, encode
from orchestrator.contracts.ids import (
    NO_PARENT,
    WEIGHTS,
    Ids,
    b64,
    chain_sha,
    ids_from_bytes,
    ids_to_bytes,
    logprobs_to_bytes,
    prompt_sha,
    row_sha,
    unb64,
)
from orchestrator.contracts.marks import BRANCH_REASONS, MarkReason
from orchestrator.contracts.spans import flat, not_tiling
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.completions.parse import Parsed
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.problems import Problem, bad_request, unavailable
from orchestrator.gateway.servers.segmented import Generated
from orchestrator.gateway.sessions.forest import StepOrigin
from orchestrator.gateway.sessions.id_buffer import IdBuffer
from orchestrator.gateway.sessions.node import Node, Placement
from orchestrator.gateway.sessions.session import Session
from orchestrator.pool.settled import MessageKey, MessageKind
from orchestrator.pool.steps import SHOWN_TOOLS, canonical
from orchestrator.runtime.log import get
from orchestrator.trajectory.routes import (
    Experts,
    Routed,
    routes_sha,
    routes_to_bytes,
)

log = get(__name__)

TEXT_RULE = "text:"


class Recorder:
    """Commits steps of one run. `experts`: those of a policy whose routes are recorded. If the routes make a step's message larger than
    `routes_bytes`, only the routes of its own tokens are recorded, or none. `longest_body`: bytes of the largest message."""

    def __init__(
        self,
        run: str,
        courier: Courier,
        *,
        stop_ids: frozenset[int],
        metrics: GatewayMetrics,
        experts: Experts | None = None,
        routes_bytes: int = 0,
        longest_body: int = sys.maxsize,
    ) -> None:
        self._run = run
        self._experts = experts
        self._routes_bytes = routes_bytes
        self._longest_body = longest_body
        self._courier = courier
        self._stop_ids = stop_ids
        self._metrics = metrics

    async def room(self) -> None:
        """Wait while the journal holds more steps than its limit: the data pool or the bus is away."""
        await self._courier.room()

    async def commit(
        self,
        session: Session,
        request: CompletionRequest,
        placement: Placement,
        generated: Generated,
        parsed: Parsed,
        sampling: dict[str, object],
        *,
        cut_off: bool = False,
    ) -> Node:
        """Record one step and assign its idx; `cut_off`: it was aborted because a clock has ended the attempt. Raises Problem 409 when the session is
        over, 503 when the disk is full, 400 when no message of the bus holds the step; then nothing was recorded. It cannot be interrupted, so forest
        and journal never disagree."""
        with anyio.CancelScope(shield=True):
            async with session.lock:
                session.check_open()
                forest = session.forest
                origin = forest.classify(placement, request.reason)
                tokens = _Tokens.of(placement, origin, generated)
                node = self._node(
                    len(forest.nodes),
                    request,
                    placement,
                    origin=origin,
                    generated=generated,
                    parsed=parsed,
                    tokens=tokens,
                )
                event = self._event(
                    session,
                    request,
                    placement,
                    origin=origin,
                    generated=generated,
                    parsed=parsed,
                    sampling=sampling,
                    tokens=tokens,
                    node=node,
                )
                marks = self._marks(session, request, generated, event, origin)
                if cut_off:
                    marks.append(MarkReason.CUT_OFF)
                message = self._message(msgspec.structs.replace(event, marks=marks))
                if len(message.body) > self._longest_body:
                    session.side_requests += 1  # so a program that repeats it comes to an end
                    raise self._too_long(message)
                try:
                    await self._courier.send(message)
                except JournalFull as error:
                    raise unavailable(str(error)) from error
                forest.add(node)
                session.remember(node, marks)
        self._metrics.steps.labels(origin.kind.value).inc()
        log.debug("step.recorded", **session.ids, step=node.idx, tokens=len(generated.ids))
        if origin.reason is not None:
            self._metrics.branches.labels(
                origin.reason if origin.reason in BRANCH_REASONS else "scaffold"
            ).inc()
        self._metrics.tokens.inc(len(generated.ids))
        return node

    def _marks(
        self,
        session: Session,
        request: CompletionRequest,
        generated: Generated,
        event: StepRecorded,
        origin: StepOrigin,
    ) -> list[MarkReason]:
        """The reasons why the step does not train. They are part of its record, so no crash can separate them from it."""
        marks = []
        if len(generated.seen) and not np.array_equal(fold(event, origin), generated.seen):
            marks.append(MarkReason.DRIFT)
            self._metrics.drift.inc()
            log.error(
                "step.drifted",
                rollout=event.rollout,
                step=event.idx,
                consequence="it does not train: its record is not what the rollout server saw",
            )
        if generated.suspect:
            marks.append(MarkReason.VERSION_SUSPECT)
        if auxiliary(request, session.spec.auxiliary):
            marks.append(MarkReason.AUXILIARY)
        elif not session.known.owns(request.turns, request.digest):
            marks.append(MarkReason.SIDE_CONVERSATION)
            self._metrics.side.inc()
            log.warning(
                "step.side_conversation",
                **session.ids,
                step=event.idx,
                consequence="it does not train: nothing shows that this conversation is the scaffold's",
            )
        return marks

    def _too_long(self, message: Outgoing) -> Problem:
        log.warning("step.too_long", bytes=len(message.body), most=self._longest_body)
        return bad_request(
            f"the record of this step has {len(message.body):,} bytes, and the run's NATS server takes at most {self._longest_body:,} "
            "(max_payload): send a shorter request"
        )

    def _message(self, event: StepRecorded) -> Outgoing:
        """The bus message. The text is only derived from the ids. If it makes the message too large, it is left out."""
        plain = msgspec.structs.replace(event, routes=None)
        body = encode(plain)
        if len(body) > subjects.INLINE_LIMIT_BYTES and plain.appended:
            log.warning("step.text_left_out", rollout=event.rollout, step=event.idx, bytes=len(body))
            plain = msgspec.structs.replace(plain, appended=[])
            body = encode(plain)
        if event.routes is not None:
            body = self._with_routes(plain, event.routes)
        return Outgoing(
            subject=subjects.steps(self._run, str(event.rollout)),
            msg_id=str(
                MessageKey(rollout_id=event.rollout, epoch=event.epoch, idx=event.idx, kind=MessageKind.STEP)
            ),
            schema=StepRecorded.schema(),
            body=body,
        )

    def _with_routes(self, plain: StepRecorded, routes: StepRoutes) -> bytes:
        """The message's body with as many routes as fit: all, those of the step's own tokens, or none."""
        body = encode(msgspec.structs.replace(plain, routes=routes))
        if len(body) <= self._routes_bytes:
            return body
        self._metrics.routes_left_out.inc()
        log.warning("step.routes_left_out", rollout=plain.rollout, step=plain.idx, bytes=len(body))
        body = encode(msgspec.structs.replace(plain, routes=_own_routes(plain, routes)))
        return body if len(body) <= self._routes_bytes else encode(plain)

    def _routes(
        self, generated: Generated, origin: StepOrigin, full_len: int, chain: bytes
    ) -> StepRoutes | None:
        """The routes, as far as a server sent them, that no ancestor step has recorded for the same weights."""
        if self._experts is None or generated.routes is None:
            return None
        start = _first_routed(origin, generated)
        unrecorded = generated.routes[start - generated.routes_from : full_len - 1 - generated.routes_from]
        if not len(unrecorded):
            return None
        layers, top_k, width = self._experts.layers, self._experts.top_k, self._experts.width
        raw = routes_to_bytes(unrecorded, width)
        return _step_routes(chain, start, layers, top_k, width, raw)

    def _node(
        self,
        idx: int,
        request: CompletionRequest,
        placement: Placement,
        *,
        origin: StepOrigin,
        generated: Generated,
        parsed: Parsed,
        tokens: "_Tokens",
    ) -> Node:
        """The step as the forest holds it."""
        return Node(
            idx=idx,
            parent=placement.parent,
            history=placement.appended,
            reply=parsed.turn,
            buffer=IdBuffer(tokens.full),
            full_len=len(tokens.full),
            state_len=len(placement.ids),
            root=idx if origin.kind is StepKind.ROOT else _root(origin),
            chain=tokens.chain,
            tools=placement.tools,
            ended=bool(generated.ids) and generated.ids[-1] in self._stop_ids,
            agent=request.agent,
            parse=parsed.status,
            finish=generated.finish,
            digest=request.digest,
            versions=tuple(sorted({span.version for span in generated.spans})),
            generation_s=generated.timings.generation,
            ended_at=generated.timings.ended,
        )

    def _event(
        self,
        session: Session,
        request: CompletionRequest,
        placement: Placement,
        *,
        origin: StepOrigin,
        generated: Generated,
        parsed: Parsed,
        sampling: dict[str, object],
        tokens: "_Tokens",
        node: Node,
    ) -> StepRecorded:
        """The step as the data pool gets it, without marks."""
        spec, prompt, spans = session.spec, tokens.prompt, generated.spans
        return StepRecorded(
            run=self._run,
            rollout=spec.rollout,
            attempt=spec.attempt,
            epoch=spec.epoch,
            idx=node.idx,
            kind=origin.kind,
            parent=origin.parent.idx if origin.parent is not None else None,
            root=node.root,
            keep_len=origin.keep_len,
            state_len=node.state_len,
            full_len=node.full_len,
            delta=b64(tokens.delta),
            action=b64(tokens.action),
            logprobs=b64(tokens.logprobs),
            spans=list(spans),
            chain_sha=tokens.chain.hex(),
            row_sha=row_sha(tokens.chain, tokens.logprobs, flat(spans), canonical(sampling)).hex(),
            sampling=sampling,
            finish=generated.finish,
            parse=parsed.status,
            agent=request.agent,
            prompt=b64(prompt) if prompt is not None else None,
            prompt_sha=tokens.digest.hex() if tokens.digest is not None else None,
            timings=StepTimings(
                queue=generated.timings.queue,
                first_byte=generated.timings.first_byte,
                generation=generated.timings.generation,
                gap=session.gap_s(),
                ended=generated.timings.ended,
            ),
            appended=_appended(request, placement, origin),
            reply=parsed.turn.plain(),
            request_digest=request.digest,
            branch_reason=origin.reason,
            branch=origin.difference.plain() if origin.difference is not None else None,
            routes=self._routes(generated, origin, node.full_len, tokens.chain),
            weights=[
                reported
                for reported in generated.weights
                if WEIGHTS.fullmatch(reported) and int(reported.partition(":")[0]) in node.versions
            ][:MAX_WEIGHTS],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """The tokens of a step: `full` is its state and its action. The bytes are those that are stored and that `chain` covers: `delta`, what the
    state adds to what it keeps of its parent; `action` and its `logprobs`; `prompt`, the state of a root, and its address `digest`, None for other
    steps."""

    full: Ids
    prompt: bytes | None
    digest: bytes | None
    delta: bytes
    action: bytes
    logprobs: bytes
    chain: bytes

    @classmethod
    def of(cls, placement: Placement, origin: StepOrigin, generated: Generated) -> "_Tokens":
        assert len(generated.ids) == len(generated.logprobs)
        assert not_tiling(generated.spans, len(generated.ids)) is None
        state = placement.ids
        prompt = ids_to_bytes(state) if origin.kind is StepKind.ROOT else None
        delta, action = ids_to_bytes(state[origin.keep_len :]), ids_to_bytes(generated.ids)
        digest = prompt_sha(prompt) if prompt is not None else None
        before = origin.parent.chain if origin.parent is not None else digest or NO_PARENT
        return cls(
            full=np.concatenate([state, np.asarray(generated.ids, dtype="<i4")]),
            prompt=prompt,
            digest=digest,
            delta=delta,
            action=action,
            logprobs=logprobs_to_bytes(generated.logprobs),
            chain=chain_sha(before, origin.keep_len, delta, action),
        )


def _appended(request: CompletionRequest, placement: Placement, origin: StepOrigin) -> list[dict[str, Any]]:
    """The messages that a step adds to its parent's, in plain form. A new rendering begins with the tools that it shows."""
    turns = [turn.plain() for turn in placement.appended]
    if origin.kind is StepKind.CONTINUES or placement.tools is None:
        return turns
    shown = [dict(tool) for tool in request.tools]
    return [{"role": SHOWN_TOOLS, "content": "", "sha": placement.tools, "tools": shown}, *turns]


def _first_routed(origin: StepOrigin, generated: Generated) -> int:
    """The first position whose routes no ancestor step has recorded for the same weights."""
    if origin.kind is not StepKind.REWRITES or origin.parent is None:
        return generated.routes_from
    return Routed(origin.keep_len, origin.parent.routed).first_wanted(generated.spans[0].version)


def _step_routes(chain: bytes, start: int, layers: int, top_k: int, width: int, raw: bytes) -> StepRoutes:
    sha = routes_sha(chain, start, layers, top_k, width, raw)
    return StepRoutes(start=start, layers=layers, top_k=top_k, width=width, ids=b64(raw), sha=sha.hex())


def _own_routes(event: StepRecorded, routes: StepRoutes) -> StepRoutes | None:
    """The routes of a step's own tokens and of the token before them; None if the step has only these."""
    first_position = event.keep_len - 1
    if event.parent is None or routes.start >= first_position:
        return None
    raw = unb64(routes.ids)[(first_position - routes.start) * routes.layers * routes.top_k * routes.width :]
    return _step_routes(
        bytes.fromhex(event.chain_sha), first_position, routes.layers, routes.top_k, routes.width, raw
    )


def fold(event: StepRecorded, origin: StepOrigin) -> Ids:
    """The full ids of an event, computed only from its own bytes and its parent's full ids, as Postgres folds them."""
    parent_ids = ids_from_bytes(unb64(event.prompt or "")) if origin.parent is None else origin.parent.full
    pieces = (ids_from_bytes(unb64(piece)) for piece in (event.delta, event.action))
    return np.concatenate([parent_ids[: event.keep_len], *pieces])


def _root(origin: StepOrigin) -> int:
    assert origin.parent is not None
    return origin.parent.root


def auxiliary(request: CompletionRequest, rules: Sequence[str]) -> bool:
    """Whether a scaffold's rules classify a call as auxiliary, not the policy's work. A rule matches the model's name, or with `text:` before
    the pattern the first message of the conversation."""
    first_text = request.turns[0].text if request.turns else ""
    return any(
        fnmatchcase(first_text, rule.removeprefix(TEXT_RULE))
        if rule.startswith(TEXT_RULE)
        else fnmatchcase(request.model, rule)
        for rule in rules
    )
