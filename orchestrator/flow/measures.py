"""What the orchestrator measures of its run for Prometheus: how much of what there is, now, and what came to an end.

Gauges are of the whole run, whoever did the work; two orchestrators on one run say the same. Counters are of what this process committed.
"""

from collections import Counter as Tally
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.config import Config
from orchestrator.contracts.events import RolloutFinished, VerdictReached
from orchestrator.contracts.states import FailureClass, GroupState, RolloutState
from orchestrator.log import get
from orchestrator.metrics import LONG, each, measured, only
from orchestrator.pool.presence import ProcessReport
from orchestrator.pool.transact import when_committed
from orchestrator.scheduling.policies import queue_policy
from orchestrator.scheduling.window import QueueRow

log = get(__name__)

MOST = 100_000  # rows of a table that nobody should let grow are counted so far
UNFINISHED = [state for state in RolloutState if state not in (RolloutState.VERIFIED, RolloutState.LOST)]

# What is over (terminal rollouts, done groups) is behind partial indexes.
_ROLLOUTS = text(
    "SELECT state, count(*) AS n FROM rollouts WHERE run_id = :run AND state NOT IN ('verified', 'lost') GROUP BY state"
)
_GROUPS = text(
    """
    SELECT seq, state, domain, extract(epoch FROM clock_timestamp() - dispatched)::float8 AS age_s
    FROM groups WHERE run_id = :run AND NOT done AND seq IS NOT NULL AND state IN ('dispatched', 'ready', 'taken') ORDER BY seq
    """
)
_OTHERS = text(
    """
    SELECT (SELECT count(*) FROM groups WHERE run_id = :run AND state = 'accepted') AS accepted,
           (SELECT count(*) FROM (SELECT FROM outbox WHERE run_id = :run LIMIT :most) o) AS outbox,
           (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8
              FROM (SELECT at FROM outbox WHERE run_id = :run LIMIT :most) o) AS outbox_s,
           (SELECT count(*) FROM (SELECT FROM dead_letters WHERE run_id = :run LIMIT :most) d) AS letters,
           (SELECT count(*) FROM rollout_servers WHERE run_id = :run AND lease_until > clock_timestamp()) AS servers,
           (SELECT max(version) FROM policy_versions WHERE run_id = :run AND superseded_by IS NULL) AS version
    """
)


class RunMetrics:
    """Of one run, in this process's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, said: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"penstock_{name}", said, labels, registry=registry)

        def counter(name: str, said: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"penstock_{name}", said, labels, registry=registry)

        self.rollouts = gauge("rollouts", "Rollouts that are not over, by state.", ("state",))
        self.groups = gauge("groups", "Groups that are not over, by state.", ("state",))
        self.head_s = gauge(
            "queue_head_age_seconds", "Since the head of the queue was dispatched: the oldest position that is neither taken nor resolved; 0: none."
        )  # fmt: skip
        self.window = gauge("queue_window_positions", "W: positions of the window.")
        self.capacity = gauge("queue_capacity_positions", "N: positions that may be open.")
        self.open = gauge("queue_open_positions", "Positions that are dispatched or ready, and not taken.")
        self.takeable = gauge(
            "queue_takeable_positions", "Ready positions inside the window: the trainer may take them now."
        )
        self.beyond = gauge(
            "queue_beyond_window_positions", "Ready positions beyond the window: they wait for the head."
        )
        self.outbox = gauge("outbox_rows", f"Messages that are owed to the bus, counted up to {MOST}.")
        self.outbox_s = gauge("outbox_oldest_seconds", "Age of the oldest of them.")
        self.letters = gauge("dead_letters", f"Messages that could not be used, counted up to {MOST}.")
        self.leases = gauge("leases", "Leases that are held, by what they are of.", ("kind",))
        self.version = gauge("policy_version", "The newest published policy version.")
        self.silence_s = gauge(
            "process_silence_seconds", "Since a process of the run, not stopped, was last heard of in the data pool.", ("process",)
        )  # fmt: skip
        self.attempts = counter("attempts_ended", "Attempts whose result was committed.", ("failure_class",))
        self.verdicts = counter("verdicts", "Verdicts that were committed.", ("failure_class",))
        self.retries = counter(
            "retries", "Work that was ordered again: a resume, a new attempt, a new verification.", ("kind", "failure_class")
        )  # fmt: skip
        self.steps = counter("steps_arrived", "Steps that arrived, by what became of them.", ("fate",))
        for ends in (self.attempts, self.verdicts):
            each(ends, *(name.value for name in FailureClass))
        self.attempt_s = Histogram(
            "penstock_attempt_seconds", "The agent's own time of an attempt, waiting for the platform left out.",
            buckets=LONG, registry=registry,
        )  # fmt: skip
        self.reward = Histogram(
            "penstock_performance_ratio", "Performance that verdicts gave, in [0, 1].",
            buckets=(0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999), registry=registry,
        )  # fmt: skip

    def show(self, seen: "Seen", processes: list[ProcessReport]) -> None:
        """Set the gauges."""
        only(self.rollouts, {(state.value,): seen.rollouts.get(state.value, 0) for state in UNFINISHED})
        states = (GroupState.ACCEPTED, GroupState.DISPATCHED, GroupState.READY, GroupState.TAKEN)
        only(self.groups, {(state.value,): seen.groups.get(state.value, 0) for state in states})
        self.head_s.set(seen.head_s)
        self.window.set(seen.window)
        self.capacity.set(seen.capacity)
        self.open.set(seen.open)
        self.takeable.set(seen.takeable)
        self.beyond.set(seen.beyond)
        self.outbox.set(seen.outbox)
        self.outbox_s.set(seen.outbox_s)
        self.letters.set(seen.letters)
        held = {"rollout": RolloutState.RUNNING, "verification": RolloutState.VERIFYING}
        leases = {kind: seen.rollouts.get(state.value, 0) for kind, state in held.items()}
        only(self.leases, {(kind,): n for kind, n in {**leases, "server": seen.servers}.items()})
        self.version.set(seen.version)
        alive = [process for process in processes if not process.stopped]
        only(self.silence_s, {(process.process,): process.silent_s for process in alive})


@dataclass(frozen=True, slots=True)
class Seen:
    """A run at one moment. Counts; `head_s` and `outbox_s` in seconds; `version` is −1 before the first."""

    rollouts: dict[str, int]
    groups: dict[str, int]
    head_s: float
    window: int
    capacity: int
    open: int
    takeable: int
    beyond: int
    outbox: int
    outbox_s: float
    letters: int
    servers: int
    version: int


async def see(connection: AsyncConnection, run_id: int, config: Config) -> Seen:
    """Read what the gauges show. Nothing is locked."""
    rollouts = {row.state: int(row.n) for row in await connection.execute(_ROLLOUTS, {"run": run_id})}
    rows = (await connection.execute(_GROUPS, {"run": run_id})).all()
    others = (await connection.execute(_OTHERS, {"run": run_id, "most": MOST})).one()
    groups = Tally[str](row.state for row in rows)
    groups[GroupState.ACCEPTED] = others.accepted
    waiting = [row for row in rows if row.state != GroupState.TAKEN]
    queue = config.queue
    policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
    takeable = policy.takeable(
        [QueueRow(row.seq, GroupState(row.state), row.domain) for row in waiting], len(waiting)
    )
    return Seen(
        rollouts=rollouts,
        groups=dict(groups),
        head_s=float(waiting[0].age_s) if waiting else 0.0,
        window=queue.window,
        capacity=queue.capacity,
        open=len(waiting),
        takeable=len(takeable),
        beyond=groups[GroupState.READY] - len(takeable),
        outbox=others.outbox,
        outbox_s=float(others.outbox_s),
        letters=others.letters,
        servers=others.servers,
        version=-1 if others.version is None else others.version,
    )


@dataclass(slots=True)
class Ended:
    """What one transaction takes in, to be counted once it is committed: `begin` where it begins, `tell` after its commit."""

    results: list[RolloutFinished] = field(default_factory=list)
    verdicts: list[VerdictReached] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Forget what a try that was not committed took in."""
        self.results.clear()
        self.verdicts.clear()
        self.fates.clear()

    def tell(self) -> None:
        """Count it, and say it: with these lines a rollout can be followed through the orchestrator."""
        metrics = measured(RunMetrics)
        for result in self.results:
            log.info(
                "rollout.reported",
                **_ids(result),
                failure=result.failure_class,
                steps=result.steps,
                reason=result.reason,
            )
            metrics.attempts.labels(result.failure_class).inc()
            metrics.attempt_s.observe(result.agent_s)
        for verdict in self.verdicts:
            log.info("rollout.verdict", **_ids(verdict), failure=verdict.failure_class, reward=verdict.reward)
            metrics.verdicts.labels(verdict.failure_class).inc()
            if verdict.reward is not None:
                metrics.reward.observe(verdict.reward)
        for fate in self.fates:
            metrics.steps.labels(fate).inc()
        self.begin()


def ordered_again(kind: str, failure: FailureClass) -> None:
    """Count a retry, once its transaction is committed: `kind` is attempt, resume or verification."""
    when_committed(measured(RunMetrics).retries.labels(kind, failure).inc)


def _ids(event: RolloutFinished | VerdictReached) -> dict[str, int]:
    return {"rollout": event.rollout, "attempt": event.attempt, "epoch": event.epoch}
