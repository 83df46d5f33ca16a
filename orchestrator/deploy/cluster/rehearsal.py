"""A rehearsed run: rollouts in slots, verifications, the queue and the trainer under a fake clock, with the product's own admission and window.

Formulas ignore barriers: a group is ready with its slowest member, a batch with its last group, and the window may make both wait. As in
production, `scheduling` decides which groups are dispatched and taken. Only durations are drawn. All times are seconds.
"""

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field

from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.admission import QueueCounts, QueueSettings, dispatchable
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.scheduling.window import QueueRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds. `*_cv`: standard deviation ÷ mean, 0: constant; drawn from a gamma distribution. `admit`: from freed capacity to the
    dispatch; `dispatch`: from there to the lease of a free slot; `report`: from the end of work in a slot until its result is recorded; `settle`:
    from a rollout's record to its verification in a free slot;
    `conclude`: from the last verdict of a group until it is ready; `claim`: from the last group to a closed batch of an idle trainer.
    `filtered`: share of groups that do not train. `*_alike`: share of the variance that is between groups."""

    slot: float
    verify: float
    train: float
    slot_cv: float = 0.0
    verify_cv: float = 0.0
    dispatch: float = 0.0
    settle: float = 0.0
    claim: float = 0.0
    filtered: float = 0.0
    admit: float = 0.0
    conclude: float = 0.0
    dispatch_cv: float = 0.0
    settle_cv: float = 0.0
    slot_alike: float = 0.0
    verify_alike: float = 0.0
    report: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result from the first commit to the last. Utilisations are shares of that time."""

    seconds: float
    batches: int  # committed in that time
    groups: int  # trained in that time
    rollouts: int  # that left their slot in that time
    slots_busy: float
    verifiers_busy: float
    trainer_busy: float
    staleness: float  # mean, in batches between a group's dispatch and its own
    stalest: int


def apart(cv: float, alike: float) -> tuple[float, float]:
    """cv of the means of groups, and of members around the mean of their group: (1 + between²) · (1 + within²) = 1 + cv².

    >>> apart(0.5, 0.0), apart(0.5, 1.0)
    ((0.0, 0.5), (0.5, 0.0))
    """
    between_variance = alike * cv**2
    return math.sqrt(between_variance), math.sqrt((1 - alike) * cv**2 / (1 + between_variance))


@dataclass(slots=True, kw_only=True)
class _Pool:
    """Equal servers with one queue, first come first served. `between`, `within`: cv, as `apart` returns them."""

    size: int
    free: int
    mean: float
    between: float
    within: float
    of_group: list[float] = field(default_factory=list)  # mean by seq
    waiting: deque[int] = field(default_factory=deque)
    busy: float = 0.0  # seconds of started service


def _pool(size: int, mean: float, cv: float, alike: float) -> _Pool:
    between, within = apart(cv, alike)
    return _Pool(size=size, free=size, mean=mean, between=between, within=within)


def rehearse(
    settings: QueueSettings,
    slots: int,
    verify_slots: int,
    durations: Durations,
    *,
    batches: int,
    seed: int = 0,
) -> Rehearsal:
    """`batches` ≥ 2 commits. Tasks are always waiting."""
    assert batches >= 2 and slots >= 1 and verify_slots >= 1
    return _Run(settings, slots=slots, verify_slots=verify_slots, durations=durations, seed=seed).until(
        batches
    )


class _Run:
    def __init__(
        self, settings: QueueSettings, *, slots: int, verify_slots: int, durations: Durations, seed: int
    ) -> None:
        self._settings, self._durations = settings, durations
        self._policy = queue_policy(settings.policy, settings.capacity, settings.window_fraction)
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, str, int]] = []
        self._clock, self._order = 0.0, 0
        d = durations
        self._slots = _pool(slots, d.slot, d.slot_cv, d.slot_alike)
        self._verifiers = _pool(verify_slots, d.verify, d.verify_cv, d.verify_alike)
        self._left: list[int] = []  # by seq: members that are not verified yet
        self._version: list[int] = []  # by seq: batches committed when it was dispatched
        self._open: list[QueueRow] = []  # dispatched or ready, by seq
        self._resolved = self._consumed = self._committed = self._running = self._ended = 0
        self._batch: list[int] = []
        self._training = False
        self._trained_s = 0.0
        self._ages: list[int] = []

    def until(self, batches: int) -> Rehearsal:
        first: tuple[float, float, float, float, int] | None = None
        handlers = {
            "admitted": self._admitted,
            "queued": self._queued,
            "left_slot": self._left_slot,
            "reported": self._reported,
            "settled": self._settled,
            "verified": self._verified,
            "verdict_reported": self._verdict_reported,
            "concluded": self._concluded,
            "trained": self._trained,
        }
        self._dispatch()
        while self._committed < batches:
            self._clock, _, event, seq = heapq.heappop(self._events)
            handlers[event](seq)
            if event == "trained" and first is None:
                first = self._so_far()
                self._ages.clear()
        assert first is not None
        last = self._so_far()
        seconds, training_s, slots_busy_s, verifying_s, ended = (
            end - start for end, start in zip(last, first, strict=True)
        )
        span = max(seconds, 1e-9)
        return Rehearsal(
            seconds=seconds,
            batches=batches - 1,
            groups=(batches - 1) * self._settings.batch_groups,
            rollouts=int(ended),
            slots_busy=min(1.0, slots_busy_s / (span * self._slots.size)),
            verifiers_busy=min(1.0, verifying_s / (span * self._verifiers.size)),
            trainer_busy=min(1.0, training_s / span),
            staleness=sum(self._ages) / max(1, len(self._ages)),
            stalest=max(self._ages, default=0),
        )

    def _so_far(self) -> tuple[float, float, float, float, int]:
        return self._clock, self._trained_s, self._slots.busy, self._verifiers.busy, self._ended

    def _later(self, seconds: float, kind: str, seq: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (self._clock + seconds, self._order, kind, seq))

    def _drawn(self, mean: float, cv: float) -> float:
        return self._random.gammavariate(1 / cv**2, mean * cv**2) if cv and mean else mean

    def _room(self) -> None:
        """There may be free capacity, which the dispatcher will check."""
        self._later(self._durations.admit, "admitted", 0)

    def _admitted(self, _: int) -> None:
        self._dispatch()

    def _dispatch(self) -> None:
        counts = QueueCounts(
            dispatched=len(self._left),
            resolved=self._resolved,
            consumed=self._consumed,
            committed_batches=self._committed,
            running_rollouts=self._running,
        )
        for _ in range(dispatchable(counts, self._settings)):
            seq = len(self._left)
            self._left.append(self._settings.group_size)
            self._version.append(self._committed)
            for pool in (self._slots, self._verifiers):
                pool.of_group.append(self._drawn(pool.mean, pool.between))
            self._open.append(QueueRow(seq, GroupState.DISPATCHED))
            self._running += self._settings.group_size
            for _ in range(self._settings.group_size):
                self._later(self._drawn(self._durations.dispatch, self._durations.dispatch_cv), "queued", seq)

    def _begin(self, pool: _Pool, then: str) -> None:
        while pool.free and pool.waiting:
            pool.free -= 1
            seq = pool.waiting.popleft()
            seconds = self._drawn(pool.of_group[seq], pool.within)
            pool.busy += seconds
            self._later(seconds, then, seq)

    def _queued(self, seq: int) -> None:
        self._slots.waiting.append(seq)
        self._begin(self._slots, "left_slot")

    def _left_slot(self, seq: int) -> None:
        self._slots.free += 1
        self._later(self._durations.report, "reported", seq)
        self._begin(self._slots, "left_slot")

    def _reported(self, seq: int) -> None:
        self._running -= 1
        self._ended += 1
        self._later(self._drawn(self._durations.settle, self._durations.settle_cv), "settled", seq)
        self._room()

    def _settled(self, seq: int) -> None:
        self._verifiers.waiting.append(seq)
        self._begin(self._verifiers, "verified")

    def _verified(self, seq: int) -> None:
        self._verifiers.free += 1
        self._begin(self._verifiers, "verified")
        self._later(self._durations.report, "verdict_reported", seq)

    def _verdict_reported(self, seq: int) -> None:
        self._left[seq] -= 1
        if not self._left[seq]:
            self._later(self._durations.conclude, "concluded", seq)

    def _concluded(self, seq: int) -> None:
        position = next(index for index, row in enumerate(self._open) if row.seq == seq)
        if self._random.random() < self._durations.filtered:
            del self._open[position]
            self._resolved += 1
            self._room()
        else:
            self._open[position] = QueueRow(seq, GroupState.READY)
        self._take()

    def _take(self) -> None:
        if self._training:
            return
        missing = self._settings.batch_groups - len(self._batch)
        taken = self._policy.takeable(self._open[: self._policy.rows_needed(missing)], missing)
        self._batch += taken
        self._open = [row for row in self._open if row.seq not in taken]
        if len(self._batch) == self._settings.batch_groups:
            self._training = True
            self._trained_s += self._durations.train
            self._later(self._durations.claim + self._durations.train, "trained", 0)

    def _trained(self, _: int) -> None:
        self._ages += [self._committed - self._version[seq] for seq in self._batch]
        self._committed += 1
        self._consumed += len(self._batch)
        self._batch, self._training = [], False
        self._room()
        self._take()
