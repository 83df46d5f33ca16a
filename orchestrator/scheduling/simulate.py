"""The tests' model of a run: the production decisions under a fake clock, with the effect of a window, staleness or slot bound.

`SimulatedQueue` holds the rows that Postgres would hold and leaves every decision to `queue_policies`, `admission` and `batching`. A
property that holds here holds for the real queue, as far as its transactions are serial. `simulate` drives it with group
durations and a trainer that takes `train_s` per batch.
"""

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from orchestrator.contracts.states import BatchState, GroupState, check
from orchestrator.scheduling.admission import QueueCounts, QueueSettings, dispatchable
from orchestrator.scheduling.batching import BatchAction, batch_action
from orchestrator.scheduling.queue_policies import QueuePolicy, queue_policy
from orchestrator.scheduling.replay import Transition
from orchestrator.scheduling.window import QueueRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBatch:
    """One batch row. `groups` are in the order of the takes."""

    batch_no: int
    groups: tuple[int, ...] = ()
    state: BatchState = BatchState.OPEN
    published: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """One group row. `version`: the number of batches published at its dispatch, that is the policy version that starts it."""

    seq: int
    state: GroupState
    version: int


@dataclass(slots=True, kw_only=True)
class SimulatedQueue:
    """Only rows: a queue rebuilt from `groups` and `batches` makes exactly the same decisions."""

    settings: QueueSettings
    groups: dict[int, SimulatedGroup] = field(default_factory=dict)  # by seq, in seq order
    batches: list[SimulatedBatch] = field(default_factory=list)  # by batch_no
    intake_closed: bool = False
    history: list[Transition] = field(default_factory=list)

    @property
    def policy(self) -> QueuePolicy:
        return queue_policy(self.settings.policy, self.settings.capacity, self.settings.window_fraction)

    def in_state(self, *states: GroupState) -> list[int]:
        """Positions in any of `states`, ascending."""
        return [seq for seq, group in self.groups.items() if group.state in states]

    def counts(self) -> QueueCounts:
        """The queue in numbers, as a query over the rows computes them."""
        return QueueCounts(
            dispatched=len(self.groups),
            resolved=len(self.in_state(GroupState.FILTERED, GroupState.DEAD)),
            consumed=sum(len(batch.groups) for batch in self.batches if batch.published),
            committed_batches=sum(batch.state == BatchState.COMMITTED for batch in self.batches),
            running_rollouts=len(self.in_state(GroupState.DISPATCHED)) * self.settings.group_size,
        )

    def dispatchable(self) -> int:
        """How many groups admission allows now."""
        return 0 if self.intake_closed else dispatchable(self.counts(), self.settings)

    def dispatch(self, at_most: int) -> list[int]:
        """Dispatch the groups that admission allows, at most `at_most`. Return their positions."""
        first = len(self.groups)
        version = sum(batch.published for batch in self.batches)
        new = list(range(first, first + min(at_most, self.dispatchable())))
        for seq in new:
            self.groups[seq] = SimulatedGroup(seq, GroupState.ACCEPTED, version)
            self._move(seq, GroupState.DISPATCHED)
        return new

    def finish(self, seq: int) -> None:
        """The group's last member is verified."""
        self._move(seq, GroupState.READY)

    def resolve(self, seq: int) -> None:
        """The group is filtered: failed, timed out, cancelled, without signal, or with too few members left."""
        self._move(seq, GroupState.FILTERED)
        self._settle()

    def take(self) -> list[int]:
        """Take all groups that may be taken into open batches and close each batch at P. Return the positions in the order of the takes."""
        taken: list[int] = []
        while True:
            batch = self._open_batch()
            missing = self.settings.batch_groups - len(batch.groups)
            claim = self.policy.takeable(self._rows(missing), missing)
            if not claim:
                return taken
            for seq in claim:
                self._move(seq, GroupState.TAKEN)
            taken += claim
            self._put(replace(batch, groups=batch.groups + tuple(claim)))
            self._settle()

    def close_intake(self) -> None:
        """Stop dispatch. Once nothing is in flight, the open batch closes short or ends with the run."""
        self.intake_closed = True
        self._settle()

    def commit(self) -> SimulatedBatch | None:
        """The trainer commits the oldest closed batch: all its train steps are done."""
        batch = next((batch for batch in self.batches if batch.state == BatchState.CLOSED), None)
        if batch is None:
            return None
        for seq in batch.groups:
            self._move(seq, GroupState.TRAINED)
        return self._put(replace(batch, state=BatchState.COMMITTED))

    def publish(self) -> None:
        """The versions of all committed batches are serving: their groups are consumed."""
        for batch in self.batches:
            if batch.state == BatchState.COMMITTED:
                self._put(replace(batch, published=True))

    def restarted(self) -> "SimulatedQueue":
        """A new process on the same rows."""
        return SimulatedQueue(
            settings=self.settings,
            groups=dict(self.groups),
            batches=list(self.batches),
            intake_closed=self.intake_closed,
            history=list(self.history),
        )

    def _settle(self) -> None:
        batch = self._open_batch()
        action = batch_action(
            len(batch.groups),
            self.settings.batch_groups,
            self.settings.short_batch,
            intake_closed=self.intake_closed,
            in_flight=len(self.in_state(GroupState.DISPATCHED, GroupState.READY)),
        )
        if action in (BatchAction.CLOSE, BatchAction.CLOSE_SHORT):
            self._put(replace(batch, state=BatchState.CLOSED))
        elif action == BatchAction.RUN_ENDED and batch.groups:
            for seq in batch.groups:
                self._move(seq, GroupState.FILTERED)
            self._put(replace(batch, state=BatchState.VOIDED))

    def _open_batch(self) -> SimulatedBatch:
        if self.batches and self.batches[-1].state == BatchState.OPEN:
            return self.batches[-1]
        return SimulatedBatch(batch_no=len(self.batches))

    def _put(self, batch: SimulatedBatch) -> SimulatedBatch:
        self.batches[batch.batch_no : batch.batch_no + 1] = [batch]
        return batch

    def _rows(self, wanted: int) -> list[QueueRow]:
        """The rows that a claim reads: the oldest untaken rows, as few as the policy needs."""
        rows = [
            QueueRow(seq, self.groups[seq].state)
            for seq in self.in_state(GroupState.DISPATCHED, GroupState.READY)
        ]
        return rows[: self.policy.rows_needed(wanted)]

    def _move(self, seq: int, state: GroupState) -> None:
        group = self.groups[seq]
        check(group.state, state)
        self.groups[seq] = replace(group, state=state)
        self.history.append(Transition(len(self.history), seq, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The course of a run. Times are in the unit of the durations."""

    queue: SimulatedQueue
    staleness: dict[int, int]  # by seq: batches between the group's dispatch and its own batch
    ended: float  # time of the last event
    trainer_busy: float  # time spent training

    @property
    def claims(self) -> list[int]:
        """Positions in the order of the takes."""
        return [t.seq for t in self.queue.history if t.state == GroupState.TAKEN]


def simulate(
    settings: QueueSettings,
    durations: Iterable[float],
    *,
    train_s: float = 0.0,
    zero_signal: Callable[[int], bool] = lambda seq: False,
) -> Simulation:
    """Run one group per duration through the queue, until nothing more can happen.

    A group of infinite duration never ends. The trainer trains one batch at a time and publishes at its end. Ready groups are
    taken at once.
    """
    clock, waiting = 0.0, list(durations)
    queue = SimulatedQueue(settings=settings)
    finishes: list[tuple[float, int]] = []
    training_until: float | None = None
    busy = ended = 0.0
    while True:
        if training_until is None and any(batch.state == BatchState.CLOSED for batch in queue.batches):
            training_until = clock + train_s
            busy += train_s
        if training_until == clock:
            queue.commit()
            queue.publish()
            training_until = None
            continue
        for seq in queue.dispatch(len(waiting) - len(queue.groups)):
            heapq.heappush(finishes, (clock + waiting[seq], seq))
        if len(queue.groups) == len(waiting) and not queue.intake_closed:
            queue.close_intake()
            continue
        clock = min(
            finishes[0][0] if finishes else math.inf, math.inf if training_until is None else training_until
        )
        if clock == math.inf:
            break
        ended = clock
        while finishes and finishes[0][0] <= clock:
            seq = heapq.heappop(finishes)[1]
            if zero_signal(seq):
                queue.resolve(seq)
            else:
                queue.finish(seq)
            queue.take()
    staleness = {
        seq: batch.batch_no - queue.groups[seq].version
        for batch in queue.batches
        if batch.state == BatchState.COMMITTED
        for seq in batch.groups
    }
    return Simulation(queue=queue, staleness=staleness, ended=ended, trainer_busy=busy)
