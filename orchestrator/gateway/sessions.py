"""A session: one attempt of one rollout at one lease epoch, spoken to through an unguessable token.

What it holds lives in the process only: the sessions row, the steps in Postgres and the journal are what it is rebuilt from.
"""

import hashlib
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.contracts.events import StepMark
from orchestrator.contracts.ids import trajectory_digest
from orchestrator.gateway.allowance import Allowance
from orchestrator.gateway.forest import Forest, Node
from orchestrator.gateway.problems import session_over
from orchestrator.gateway.replay import Replay
from orchestrator.gateway.script import Script
from orchestrator.gateway_client import Budget, Seal

if TYPE_CHECKING:
    from orchestrator.gateway.calls import Call

TOKEN_BYTES = 32
UNDELIVERED, VERSION_SUSPECT, AUXILIARY, DRIFT = "undelivered", "version_suspect", "auxiliary", "drift"


def new_token() -> str:
    """A capability of 256 random bits, safe in a URL path."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_hash(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session was opened with. `sampling` overrides the run's parameters; `script` replaces the policy; `auxiliary` are patterns
    of model names whose calls do not train; `replayable`: another lease may go on from the recorded steps; `version`: the one policy version
    of an evaluation, where servers are reserved for those; `group`: whose rollout it is, for the log, None: the runner did not say."""

    rollout: int
    attempt: int
    epoch: int
    budget: Budget
    expires: float  # time.monotonic() of this process: a clock that is set anew ends no session
    sampling: Mapping[str, Any] = field(default_factory=dict)
    script: tuple[Mapping[str, Any], ...] | None = None
    auxiliary: tuple[str, ...] = ()
    replayable: bool = False
    version: int | None = None
    group: int | None = None


class Session:
    """An open session and its forest. `over` is None while steps may be committed. The first `recorded` steps are of earlier leases:
    `replay` serves them again.

    Invariant: the forest only grows under `lock`, and never once `over` is set.
    """

    def __init__(
        self,
        terms: Terms,
        forest: Forest,
        *,
        marks: Mapping[int, set[str]] | None = None,
        recorded: int = 0,
        replayed: Collection[int] | None = None,
    ) -> None:
        self.terms = terms
        self.forest = forest
        self.lock = anyio.Lock(fast_acquire=True)
        self.saving = anyio.Lock()
        self.over: str | None = None
        self.calls: dict[str, Call] = {}  # in flight, by request digest
        self.newest: dict[str, Node] = {}  # the last step of each request digest
        self.marks: dict[int, set[str]] = {idx: set(reasons) for idx, reasons in (marks or {}).items()}
        self.queued_s = 0.0
        self.requests = len(forest.nodes)
        self.exhausted: str | None = None
        self.failing: str | None = (
            None  # why the platform failed the newest call that ended, None if it did not
        )
        self.last_reply_at: float | None = None
        for node in forest.nodes:
            self.remember(node)
            for reason in node.marks:
                self.mark(node, reason)
            if node.delivered is None and (
                node.finish == "abort" or UNDELIVERED in self.marks.get(node.idx, ())
            ):
                node.delivered = False
        self.allowance = Allowance(terms.budget.max_total_tokens)
        self.script = None if terms.script is None else Script(terms.script, self.turns)
        self.replay: Replay | None = None
        if recorded:
            needless = {idx for idx, reasons in self.marks.items() if reasons & {UNDELIVERED, AUXILIARY}}
            self.replay = Replay(forest.nodes[:recorded], needless, replayed)

    @property
    def key(self) -> tuple[int, int]:
        return self.terms.rollout, self.terms.attempt

    @property
    def ids(self) -> dict[str, int]:
        """What every log line about it carries."""
        named = {
            "rollout": self.terms.rollout,
            "group": self.terms.group,
            "attempt": self.terms.attempt,
            "epoch": self.terms.epoch,
        }
        return {name: value for name, value in named.items() if value is not None}

    def check_open(self) -> None:
        """Raise Problem 409 once the session is sealed, closed or expired."""
        if self.over is not None:
            raise session_over(self.over)
        if self.replay is not None and self.replay.parted is not None:
            raise session_over(f"the replay has parted from the record: {self.replay.parted}")
        if time.monotonic() > self.terms.expires:
            raise session_over("expired")

    def remember(self, node: Node) -> None:
        """Take `node` for the last step of its request. One that was given up comes late, and then does not hide a whole answer that nobody
        has got yet."""
        known = self.newest.get(node.digest)
        whole = known is not None and known.finish != "abort" and known.delivered is not True
        if not (whole and node.finish == "abort"):
            self.newest[node.digest] = node

    @property
    def turns(self) -> int:
        """Steps that count against the budget: those that were not aborted, auxiliary ones apart."""
        return sum(
            node.finish != "abort" and AUXILIARY not in self.marks.get(node.idx, ())
            for node in self.forest.nodes
        )

    @property
    def sampled_tokens(self) -> int:
        return sum(len(node.action) for node in self.forest.nodes)

    def mark(self, node: Node, reason: str) -> None:
        """Keep a step out of training."""
        self.marks.setdefault(node.idx, set()).add(reason)

    def seal(self) -> Seal:
        """What the steps so far amount to. A step whose reply certainly reached nobody is marked undelivered, all others are not."""
        nodes = self.forest.nodes
        for node in nodes:
            if node.delivered is False:
                self.mark(node, UNDELIVERED)
            elif node.idx in self.marks:
                self.marks[node.idx].discard(UNDELIVERED)
        return Seal(
            steps=len(nodes),
            last_idx=len(nodes) - 1,
            digest=trajectory_digest([node.chain for node in nodes]).hex(),
            marks=tuple(
                StepMark(idx, reason) for idx in sorted(self.marks) for reason in sorted(self.marks[idx])
            ),
            queued_s=round(self.queued_s, 6),
            calls=self.requests,
            exhausted=self.exhausted,
            failing=self.failing,
            sampled_tokens=self.sampled_tokens,
            versions=tuple(sorted({version for node in nodes for version in node.versions})),
            **({} if self.replay is None else self.replay.told()),
        )
