"""A session: one attempt of one rollout at one lease epoch, addressed by an unguessable token.

Its state lives in the process only. It is rebuilt from the sessions row, the steps in Postgres and the journal.
"""

import hashlib
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from scaffolds.base import Conversations

from orchestrator.contracts.events import StepMark
from orchestrator.contracts.ids import trajectory_digest
from orchestrator.contracts.marks import BudgetKind, Finish, MarkReason
from orchestrator.contracts.states import SessionState
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.problems import session_over, unavailable
from orchestrator.gateway.sessions.allowance import Allowance
from orchestrator.gateway.sessions.call import CompletionCall
from orchestrator.gateway.sessions.conversations import ScaffoldConversations
from orchestrator.gateway.sessions.failures import Failures
from orchestrator.gateway.sessions.forest import Forest
from orchestrator.gateway.sessions.node import Node
from orchestrator.gateway.sessions.replay import Replay
from orchestrator.gateway.sessions.script import Script
from orchestrator.gateway_client import Seal, SessionBudget
from orchestrator.trajectory.waiting import Account, CallTime

TOKEN_BYTES = 32
REST, BURST_S = 9, 0.1
"""A session gets one part in 1 + REST of the event loop. It may owe up to BURST_S seconds of rest before it waits."""
WAIT_TURN = 64  # requests of one session that have arrived and are not read yet
# Requests of one session that wait for a reply or receive it. Equal ones share a call, so no budget bounds them, and each holds a connection.
WAIT_REPLY = 256


def new_token() -> str:
    """A capability of 256 random bits, safe in a URL path."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_hash(token: str) -> bytes:
    """The stored hash of a token. A header may contain bytes that are not text."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """The parameters of a session's opening. `sampling` overrides the run's parameters; `script` replaces the policy; `auxiliary` are patterns
    of model names whose calls do not train; `replayable`: another lease may continue from the recorded steps; `version`: the one policy version
    of an evaluation, where servers are reserved for evaluations; `group`: the rollout's group, for the log, None: the runner did not send it.
    `conversations`, `sub_agents`, `instructions` (of the later steps of its task): how `ScaffoldConversations` recognizes the scaffold's
    conversations."""

    rollout: int
    attempt: int
    epoch: int
    budget: SessionBudget
    expires: float  # time.monotonic() of this process: setting the machine's clock does not end a session
    sampling: Mapping[str, Any] = field(default_factory=dict)
    script: tuple[Mapping[str, Any], ...] | None = None
    auxiliary: tuple[str, ...] = ()
    replayable: bool = False
    version: int | None = None
    group: int | None = None
    conversations: Conversations = "many"
    sub_agents: tuple[str, ...] | None = None
    instructions: tuple[str, ...] = ()


class Session:
    """An open session and its forest. `over` is None while steps may be committed. The first `recorded` steps are of earlier leases:
    `replay` serves them again. `ahead`: seconds since 1970 by the database's clock, minus `time.monotonic()`; None: this machine's clock.

    Invariant: the forest only grows under `lock`, and never once `over` is set.
    """

    def __init__(
        self,
        spec: SessionSpec,
        forest: Forest,
        *,
        marks: Mapping[int, set[str]] | None = None,
        recorded: int = 0,
        replayed: Collection[int] | None = None,
        ahead: float | None = None,
    ) -> None:
        self.spec = spec
        self._ahead = time.time() - time.monotonic() if ahead is None else ahead
        self.forest = forest
        self.lock = anyio.Lock(fast_acquire=True)
        self.saving = anyio.Lock()
        self.large = anyio.Lock()  # held while a large request of the session is read or rendered
        self.waiting_large = 0
        self.waiting_reply = 0
        # Extra count of its large requests, in addition to their steps: see `budgets.REQUESTS_PER_TURN`.
        self.side_requests = 0
        self.over: SessionState | None = None
        self.calls: dict[str, CompletionCall] = {}  # in flight, by request digest
        self.in_preparation: set[CallTime] = set()  # large requests before they are calls
        self.newest: dict[str, Node] = {}  # the last step of each request digest
        # Those of `newest` whose request came again later, without success.
        self.newer_refused = set[str]()
        self.known = ScaffoldConversations(spec.conversations, spec.sub_agents, spec.instructions)
        self.marks: dict[int, set[str]] = {idx: set(reasons) for idx, reasons in (marks or {}).items()}
        self.account = Account()  # attribution of time since this process has known the session
        self._idle_reported = 0.0  # seconds of its idle time that are already in the gaps of steps
        self.requests = len(forest.nodes)
        self.exhausted: BudgetKind | None = None
        self.failures = Failures()
        self._rests_until, self._waiting_turn, self._receiving = 0.0, 0, 0
        self.worked_s = 0.0  # seconds of the gateway's own work for its requests, without waiting
        self.turns = 0  # steps that count against the budget: not aborted, not auxiliary
        self.auxiliary_calls = 0  # steps of calls outside the conversation, aborted ones too
        self.auxiliary_tokens = 0
        self.sampled_tokens = 0
        self._recorded = recorded
        for node in forest.nodes:
            self.remember(node, node.marks)
            aborted = node.finish == Finish.ABORT and not self._cut_off(node)
            if node.delivered is None and (aborted or MarkReason.UNDELIVERED in self.marks.get(node.idx, ())):
                node.delivered = False
        self.allowance = Allowance(spec.budget.max_total_tokens)
        self.auxiliary_allowance = Allowance(spec.budget.max_auxiliary_tokens)
        self.script = None if spec.script is None else Script(spec.script, self.turns)
        # Steps by the ids of responses that do not locate them by themselves (`stored.py`).
        self.responses: dict[str, int] = {}
        self.deleted: set[str] = set()  # ids of responses that its program deleted
        self.replay: Replay | None = None
        if recorded:
            optional_steps = {
                idx
                for idx, reasons in self.marks.items()
                if reasons & {MarkReason.UNDELIVERED, MarkReason.AUXILIARY, MarkReason.CUT_OFF}
            }
            self.replay = Replay(forest.nodes[:recorded], optional_steps, replayed)

    @property
    def key(self) -> tuple[int, int]:
        return self.spec.rollout, self.spec.attempt

    @property
    def has_replied(self) -> bool:
        """Whether the program has received a reply of the policy. If so, the turns of its requests are a history."""
        return bool(self.forest.nodes) and (self.replay is None or bool(self.replay.replayed))

    @property
    def ids(self) -> dict[str, int]:
        """The fields that every log line about the session has."""
        fields = {
            "rollout": self.spec.rollout,
            "group": self.spec.group,
            "attempt": self.spec.attempt,
            "epoch": self.spec.epoch,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Encloses uninterrupted work of the gateway on one request. Other sessions wait for it, so the time counts against this session."""
        started_at = time.monotonic()
        try:
            yield
        finally:
            ended_at = time.monotonic()
            self.worked_s += ended_at - started_at
            self.charge_time(ended_at - started_at)

    def charge_time(self, seconds: float) -> None:
        """Charge `seconds` of the event loop's time to the session, which then rests REST times as long."""
        self._rests_until = max(self._rests_until, time.monotonic()) + REST * seconds

    async def turn(self) -> None:
        """Return when the gateway may work for this session on the event loop again. A session that sends requests in a loop gets only its part
        of the loop. The caller must not await anything between this and the work. Raises Problem 503 when very many of its requests wait."""
        if self._waiting_turn >= WAIT_TURN:
            raise unavailable(f"{WAIT_TURN} requests of this session wait to be read: try again")
        self._waiting_turn += 1
        try:
            while (remaining_s := self._rests_until - BURST_S - time.monotonic()) > 0:
                await anyio.sleep(remaining_s)
        finally:
            self._waiting_turn -= 1

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """While the body of one of its requests arrives. Raises Problem 503 when very many do."""
        if self._receiving >= WAIT_TURN:
            raise unavailable(
                f"the bodies of {WAIT_TURN} requests of this session have not arrived yet: try again"
            )
        self._receiving += 1
        try:
            yield
        finally:
            self._receiving -= 1

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """While one of its received requests waits for the gateway's threads and processes, or is in one. It is in flight and waits, as a call
        that waits for a rollout server."""
        times = self.account.call(time.monotonic())
        self.in_preparation.add(times)
        try:
            yield
        finally:
            self.in_preparation.discard(times)
            times.over(time.monotonic())

    def check_open(self) -> None:
        """Raise Problem 409 once the session is sealed, closed or expired."""
        if self.over is not None:
            raise session_over(self.over)
        if self.replay is not None and self.replay.parted is not None:
            raise session_over(f"the replay has parted from the record: {self.replay.parted}")
        if time.monotonic() > self.spec.expires:
            raise session_over("expired")

    def remember(self, node: Node, marks: Collection[str] = ()) -> None:
        """Make the newest step the last one of its request, and add its marks. An aborted step arrives late; it does not hide a complete
        answer that no client has received yet."""
        for reason in marks:
            self.mark(node, reason)
        if not {MarkReason.AUXILIARY, MarkReason.SIDE_CONVERSATION} & self.marks.get(node.idx, set()):
            self.known.add(node)
        self._count(node)
        if node.digest is None:
            return
        known = self.newest.get(node.digest)
        undelivered = known is not None and known.finish != Finish.ABORT and known.delivered is not True
        if not (undelivered and node.finish == Finish.ABORT):
            self.newest[node.digest] = node
            self.newer_refused.discard(node.digest)

    def _cut_off(self, node: Node) -> bool:
        """Whether the end of this attempt cut off a step. What was cut off at the end of an earlier lease is given up: the attempt went on."""
        return MarkReason.CUT_OFF in self.marks.get(node.idx, ()) and node.idx >= self._recorded

    def refused(self, digest: str, steps: int) -> None:
        """A request that came after `steps` steps ended without a reply: a retry of it does not want the reply of an earlier equal request."""
        if (known := self.newest.get(digest)) is not None and known.idx < steps:
            self.newer_refused.add(digest)

    @contextmanager
    def beginning(self, request: CompletionRequest) -> Iterator[None]:
        """Encloses the way of a request to its call. It has no reply if an exception ends that."""
        steps = len(self.forest.nodes)
        try:
            yield
        except BaseException:
            if request.retries == 0:  # a retry still wants the reply that was lost
                self.refused(request.digest, steps)
            raise

    def mark(self, node: Node, reason: str) -> None:
        """Mark a step (`StepMark`)."""
        self.marks.setdefault(node.idx, set()).add(reason)

    def _count(self, node: Node) -> None:
        """Add a step, once it has its marks, to the counters."""
        tokens = len(node.action)
        self.sampled_tokens += tokens
        if MarkReason.AUXILIARY in self.marks.get(node.idx, ()):
            self.auxiliary_calls += 1
            self.auxiliary_tokens += tokens
        elif node.finish != Finish.ABORT:
            self.turns += 1

    def database_time(self, at: float) -> float:
        """Convert a `time.monotonic()` to seconds since 1970 on the database's clock."""
        return self._ahead + at

    def gap_s(self) -> float:
        """Seconds without a call in flight since the last call of this method. The gaps of an attempt's steps add up to its idle time."""
        idle = self.account.idle_s(time.monotonic())
        gap, self._idle_reported = max(0.0, idle - self._idle_reported), idle
        return gap

    def seal(self) -> Seal:
        """The seal of the steps so far. A step is marked undelivered exactly if its reply certainly reached no client, and was not cut off."""
        nodes, times = self.forest.nodes, self.account.totals(time.monotonic())
        for node in nodes:
            if node.delivered is False and not self._cut_off(node):
                self.mark(node, MarkReason.UNDELIVERED)
            elif node.idx in self.marks:
                self.marks[node.idx].discard(MarkReason.UNDELIVERED)
        return Seal(
            steps=len(nodes),
            last_idx=len(nodes) - 1,
            digest=trajectory_digest([node.chain for node in nodes]).hex(),
            marks=tuple(
                StepMark(idx, reason) for idx in sorted(self.marks) for reason in sorted(self.marks[idx])
            ),
            queued_s=round(times.waiting, 6),
            generation_s=round(times.generation, 6),
            calls=self.requests,
            exhausted=self.exhausted,
            failing=self.failures.newest,
            last_failed=self.failures.last,
            sampled_tokens=self.sampled_tokens,
            versions=tuple(sorted({version for node in nodes for version in node.versions})),
            **({} if self.replay is None else self.replay.summary()),
        )
