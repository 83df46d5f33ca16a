"""Budgets of a session: turns, tokens, context, auxiliary calls, large requests."""

from dataclasses import dataclass
from typing import Any

from anyio.abc import TaskGroup

from orchestrator.contracts.marks import BudgetKind
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.problems import Problem, budget_exhausted
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.servers.client import CONTEXT_KEPT, SamplingParams
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway.sessions.node import Placement
from orchestrator.gateway.sessions.seeds import seed_of
from orchestrator.gateway.sessions.session import Session
from orchestrator.gateway.sessions.store import SessionStore
from orchestrator.settings.config import SamplingSection

# An aborted call costs no turn, because clients disconnect and retry. A client that only does that must be stopped as well. A large request
# counts here once more for each context of tokens that is read for it, whether it becomes a step, requests a count or is refused.
REQUESTS_PER_TURN = 8
# Bytes of a body that are not part of the prompt: names, ids, markers, tools that are not shown.
ALLOWANCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Limit:
    """The capacity of a session's context: `tokens`, and `longest`: the most bytes that JSON writes for a token."""

    tokens: int
    longest: int

    @property
    def bytes(self) -> int:
        """The largest body that may fit."""
        return max(0, self.tokens) * self.longest + ALLOWANCE


class Budgets:
    """Enforces the budgets of sessions on their calls. A refused call raises Problem 400. `carried`: the longest context, in tokens, whose step
    the bus takes."""

    def __init__(
        self,
        *,
        tasks: TaskGroup,
        renderer: Renderer,
        pool: ServerPool,
        store: SessionStore,
        sampling: SamplingSection,
        metrics: GatewayMetrics,
        carried: int,
    ) -> None:
        self._tasks = tasks
        self._renderer = renderer
        self._pool = pool
        self._store = store
        self._sampling = sampling
        self._metrics = metrics
        self._carried = carried

    def limit(self, session: Session) -> Limit:
        """The capacity of the session's context."""
        return Limit(self.context_of(session), self._renderer.longest)

    def context_of(self, session: Session) -> int:
        return self.context(session.spec.budget.max_context)

    def context(self, most: int) -> int:
        """Tokens of state and action together that a session may have: `most` (0: no limit), bounded by the model, the available servers and
        the bus."""
        limit = int(min(self._renderer.context - CONTEXT_KEPT, self._pool.capacity, self._carried))
        return min(most, limit) if most else limit

    def charge(self, session: Session, *, aside: bool, again: bool = False) -> None:
        """Count a large request. Raises Problem 400 when the session has made too many, unless it repeats a request (`again`)."""
        limit = self._turns(session)
        if self._request_count(session) >= REQUESTS_PER_TURN * limit and not again:
            raise self.exhausted(session, BudgetKind.TURNS, limit, aside)
        session.side_requests += 1
        self._metrics.large.inc()

    def too_long(self, session: Session, aside: bool, limit: Limit | None = None) -> Problem:
        """The refusal of a request that exceeds the context. `limit`: set if the size in bytes shows that."""
        problem = self.exhausted(session, BudgetKind.CONTEXT, self.context_of(session), aside)
        if limit is None:
            return problem
        hint = f"; a body of more than {limit.bytes:,} bytes cannot fit"
        return Problem(problem.status, problem.code, problem.message + hint, param=problem.param)

    def check_turns(self, session: Session, aside: bool) -> None:
        """Raise Problem 400 when no call is left. A call outside the conversation (`aside`) takes no turn, but there is a limit for such calls."""
        budget = session.spec.budget
        limit, requests = self._turns(session), self._request_count(session)
        if aside:
            self._check_aside(session)
        turns = session.turns + sum(not call.auxiliary for call in session.calls.values())
        if (turns >= limit and not aside) or requests >= REQUESTS_PER_TURN * limit:
            raise self.exhausted(session, BudgetKind.TURNS, limit, aside)
        if budget.max_total_tokens is not None and session.sampled_tokens >= budget.max_total_tokens:
            raise self.exhausted(session, BudgetKind.TOKENS, budget.max_total_tokens)

    @staticmethod
    def _check_aside(session: Session) -> None:
        """Raise Problem 400 when no auxiliary call is left. Auxiliary calls take no turns and do not train."""
        budget = session.spec.budget
        calls = session.auxiliary_calls + sum(call.auxiliary for call in session.calls.values())
        if budget.max_auxiliary_calls is not None and calls >= budget.max_auxiliary_calls:
            raise budget_exhausted(BudgetKind.AUXILIARY_CALLS, budget.max_auxiliary_calls)
        if (
            budget.max_auxiliary_tokens is not None
            and session.auxiliary_tokens >= budget.max_auxiliary_tokens
        ):
            raise budget_exhausted(BudgetKind.AUXILIARY_TOKENS, budget.max_auxiliary_tokens)

    @staticmethod
    def _turns(session: Session) -> int:
        max_turns, script = session.spec.budget.max_turns, session.spec.script
        return max_turns if script is None else min(max_turns, len(script))

    @staticmethod
    def _request_count(session: Session) -> int:
        return len(session.forest.nodes) + len(session.calls) + session.side_requests

    def exhausted(self, session: Session, which: BudgetKind, limit: int, aside: bool = False) -> Problem:
        """The refusal. A refused call outside the conversation (`aside`) does not mark the session as exhausted."""
        if session.exhausted is None and not aside:
            session.exhausted = which
            self._tasks.start_soon(self._store.save_progress, session)
        return budget_exhausted(which, limit)

    def params(
        self, session: Session, request: CompletionRequest, placement: Placement, aside: bool
    ) -> tuple[SamplingParams, dict[str, Any]]:
        """(parameters to send, parameters to record). The run's parameters override the harness's, except lower token limits and stop strings."""
        budget = session.spec.budget
        context = self.context_of(session)
        remaining = context - len(placement.ids)
        if remaining <= 0:
            raise self.exhausted(session, BudgetKind.CONTEXT, context, aside)
        values: dict[str, Any] = {
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "max_new_tokens": self._sampling.max_new_tokens,
            **session.spec.sampling,
        }
        if request.max_tokens is not None:
            values["max_new_tokens"] = min(values["max_new_tokens"], request.max_tokens)
        limits = [remaining]
        if session.spec.script is None:
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
            seed=None if seed is None else seed_of(session, request, placement.ids, int(seed)),
        )
        recorded = {**values, "stop": list(request.stop)} if request.stop else values
        if (choice := request.rule.plain()) is not None:
            recorded = {**recorded, "tool_choice": choice}
        return params, {"scripted": True} if session.spec.script is not None else recorded
