"""Prometheus metrics of the run in the orchestrator: current amounts, and ended attempts and verifications.

Gauges cover the work of all processes of the run; two orchestrators on one run report the same. Counters cover the commits of this process.
"""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orchestrator.contracts.events import RolloutFinished, VerdictReached
from orchestrator.contracts.states import FailureClass, GroupState, RolloutState
from orchestrator.pool.heartbeats import ProcessReport
from orchestrator.pool.transact import when_committed
from orchestrator.queries.run_gauges import MAX_COUNTED, RunGauges
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import (
    LONG,
    each,
    measured,
    only,
)

log = get(__name__)

UNFINISHED = [state for state in RolloutState if state not in (RolloutState.VERIFIED, RolloutState.LOST)]


class RunMetrics:
    """Metrics of one run, in this process's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, documentation: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"penstock_{name}", documentation, labels, registry=registry)

        def counter(name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"penstock_{name}", documentation, labels, registry=registry)

        self.rollouts = gauge("rollouts", "Rollouts that are not over, by state.", ("state",))
        self.groups = gauge("groups", "Groups that are not over, by state.", ("state",))
        self.head_s = gauge(
            "queue_head_age_seconds",
            "Since the head of the queue was dispatched: the oldest position that is neither taken nor resolved; 0: none.",
        )
        self.window = gauge("queue_window_positions", "W: positions of the window.")
        self.capacity = gauge("queue_capacity_positions", "N: positions that may be open.")
        self.open = gauge("queue_open_positions", "Positions that are dispatched or ready, and not taken.")
        self.takeable = gauge(
            "queue_takeable_positions", "Ready positions inside the window: the trainer may take them now."
        )
        self.beyond = gauge(
            "queue_beyond_window_positions", "Ready positions beyond the window: they wait for the head."
        )
        self.outbox = gauge("outbox_rows", f"Messages that are owed to the bus, counted up to {MAX_COUNTED}.")
        self.outbox_s = gauge("outbox_oldest_seconds", "Age of the oldest of them.")
        self.letters = gauge("dead_letters", f"Messages that could not be used, counted up to {MAX_COUNTED}.")
        self.leases = gauge("leases", "Leases that are held, by what they are of.", ("kind",))
        self.version = gauge("policy_version", "The newest published policy version.")
        self.silence_s = gauge(
            "process_silence_seconds",
            "Seconds since a process of the run that is not stopped last reported to the data pool.",
            ("process",),
        )
        self.attempts = counter("attempts_ended", "Attempts whose result was committed.", ("failure_class",))
        self.verdicts = counter("verdicts", "Verdicts that were committed.", ("failure_class",))
        self.retries = counter(
            "retries",
            "Work that was ordered again: a resume, a new attempt, a new verification.",
            ("kind", "failure_class"),
        )
        self.steps = counter("steps_arrived", "Steps that arrived, by what became of them.", ("fate",))
        for ends in (self.attempts, self.verdicts):
            each(ends, *(name.value for name in FailureClass))
        self.attempt_s = Histogram(
            "penstock_attempt_seconds",
            "The agent's own time of an attempt, waiting for the platform left out.",
            buckets=LONG,
            registry=registry,
        )
        self.reward = Histogram(
            "penstock_performance_ratio",
            "Performance that verdicts gave, in [0, 1].",
            buckets=(0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999),
            registry=registry,
        )

    def show(self, gauges: RunGauges, processes: list[ProcessReport]) -> None:
        """Set the gauges."""
        only(self.rollouts, {(state.value,): gauges.rollouts.get(state.value, 0) for state in UNFINISHED})
        states = (GroupState.ACCEPTED, GroupState.DISPATCHED, GroupState.READY, GroupState.TAKEN)
        only(self.groups, {(state.value,): gauges.groups.get(state.value, 0) for state in states})
        self.head_s.set(gauges.head_s)
        self.window.set(gauges.window)
        self.capacity.set(gauges.capacity)
        self.open.set(gauges.open)
        self.takeable.set(gauges.takeable)
        self.beyond.set(gauges.beyond)
        self.outbox.set(gauges.outbox)
        self.outbox_s.set(gauges.outbox_s)
        self.letters.set(gauges.letters)
        held = {"rollout": RolloutState.RUNNING, "verification": RolloutState.VERIFYING}
        leases = {kind: gauges.rollouts.get(state.value, 0) for kind, state in held.items()}
        only(self.leases, {(kind,): n for kind, n in {**leases, "server": gauges.servers}.items()})
        self.version.set(gauges.version)
        alive = [process for process in processes if not process.stopped]
        only(self.silence_s, {(process.process,): process.silent_s for process in alive})


@dataclass(slots=True)
class Ended:
    """Results, verdicts and steps of one transaction, counted after its commit: `begin` at its start, `tell` after its commit."""

    results: list[RolloutFinished] = field(default_factory=list)
    verdicts: list[VerdictReached] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Forget the content of a try that was not committed."""
        self.results.clear()
        self.verdicts.clear()
        self.fates.clear()

    def tell(self) -> None:
        """Count and log the content: the log lines trace a rollout through the orchestrator."""
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
