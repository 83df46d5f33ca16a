"""Admission: how many groups may be dispatched now, from which domains, and the checks before a run starts.

Staleness is bounded here, by limiting the groups that start, never by discarding finished work: discarding old groups would
starve long tasks. A group may be dispatched while

    outstanding < N                            outstanding = dispatched − resolved − consumed, ready groups included
    dispatched − resolved < (S+1+v)·P          v = committed batches
    running rollouts + G ≤ the bound for running rollouts

All are counted from rows, so a restart changes nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.queue_window import FIFO, GREEDY, WINDOWED, places, window_of
from orchestrator.settings.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The numbers that shape the queue of one run. `check_queue` reports whether they fit together."""

    capacity: int  # N: groups dispatched and neither resolved nor consumed
    batch_groups: int  # P
    group_size: int  # G
    max_staleness: int  # S, in batches
    running_rollouts: int  # bound for rollouts that are queued for a runner or running
    policy: str = WINDOWED
    window_fraction: float = 0.3  # f
    min_batch_groups: int | None = None  # P_min of the last, short batch; None: ⌈P/2⌉

    @classmethod
    def of(cls, config: Config) -> Self:
        """The part of the configuration that shapes the queue. Up to G−1 rollouts wait ready, so that no runner slot is idle."""
        queue = config.queue
        return cls(
            capacity=queue.capacity,
            batch_groups=queue.batch_groups,
            group_size=queue.group_size,
            max_staleness=queue.max_staleness,
            running_rollouts=config.rollout.slots + queue.group_size - 1,
            policy=queue.policy,
            window_fraction=queue.window_fraction,
            min_batch_groups=queue.short_batch,
        )

    @property
    def window(self) -> int:
        """W of the policy, in queue positions."""
        return window_of(self.policy, self.capacity, self.window_fraction)

    @property
    def places(self) -> int:
        """The most groups in flight: min(N, (S+1)·P)."""
        return places(self.capacity, self.max_staleness, self.batch_groups)

    @property
    def reach(self) -> float:
        """min(N, (S+1)·P) + W, in groups: how many are dispatched before the slowest one stops the trainer. Infinite for `greedy`, which waits
        for none."""
        return math.inf if self.policy == GREEDY else self.places + self.window

    @property
    def short_batch(self) -> int:
        """P_min: the fewest groups that the run's last batch may close with."""
        return math.ceil(self.batch_groups / 2) if self.min_batch_groups is None else self.min_batch_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """The run's queue in numbers. Counts only groups of purpose train with a seq, so not groups that were filtered before dispatch."""

    dispatched: int = 0  # groups that ever got a seq
    resolved: int = 0  # of those: filtered or dead, never trained
    # Of those: in a committed batch whose version is published (without publishing: committed).
    consumed: int = 0
    committed_batches: int = 0  # v, without voided ones
    running_rollouts: int = 0  # rollouts of dispatched groups that are queued for a runner or running

    @property
    def outstanding(self) -> int:
        """The number of groups that occupy one of the N places."""
        return self.dispatched - self.resolved - self.consumed


def dispatchable(counts: QueueCounts, settings: QueueSettings) -> int:
    """How many groups of the run's usual size may be dispatched now. A caller that dispatches groups of other sizes stops at
    the first group that exceeds the bound for running rollouts, so that small groups cannot starve a large group.

    N = 8, P = 4, S = 1, G = 4, 64 running rollouts. At the start all 8 places are free, and (1+1+0)·4 = 8 groups fit the
    staleness bound. With 6 dispatched and one of them resolved, 3 more:

    >>> settings = QueueSettings(capacity=8, batch_groups=4, group_size=4, max_staleness=1, running_rollouts=64)
    >>> dispatchable(QueueCounts(), settings), dispatchable(QueueCounts(dispatched=6, resolved=1), settings)
    (8, 3)

    Strict on running rollouts: up to G−1 runners may be idle; a bound of (runners + G − 1) keeps them all busy.
    """
    return max(0, min(_rooms(counts, settings)))


def _rooms(counts: QueueCounts, settings: QueueSettings) -> tuple[int, int, int]:
    """The number of further groups that each bound allows: staleness, places in flight, running rollouts. Negative above the bound."""
    by_staleness = _ahead(counts, settings) - (counts.dispatched - counts.resolved)
    by_capacity = settings.capacity - counts.outstanding
    slots = (settings.running_rollouts - counts.running_rollouts) // settings.group_size
    return by_staleness, by_capacity, slots


def _ahead(counts: QueueCounts, settings: QueueSettings) -> int:
    """Groups that may be dispatched (filtered ones not counted) before another batch is committed."""
    return (settings.max_staleness + 1 + counts.committed_batches) * settings.batch_groups


def binding(counts: QueueCounts, settings: QueueSettings) -> str | None:
    """Why no group may be dispatched now, with the key and the arithmetic, as the end of "an accepted group waits:"; None: a group may be.

    >>> settings = QueueSettings(capacity=24, batch_groups=4, group_size=4, max_staleness=2, running_rollouts=64)
    >>> binding(QueueCounts(dispatched=33, resolved=1, consumed=8, committed_batches=9), settings)
    'the queue is full: 24 groups are in flight, and queue.capacity is 24'
    """
    capacities = _rooms(counts, settings)
    minimum = min(capacities)
    if minimum > 0:
        return None
    if minimum == capacities[0]:
        return (
            f"the queue is as far ahead of the trainer as queue.max_staleness = {settings.max_staleness} allows "
            f"({counts.dispatched - counts.resolved} groups dispatched and not filtered, of ({settings.max_staleness} + 1 + "
            f"{counts.committed_batches} committed batches) × {settings.batch_groups} groups = {_ahead(counts, settings)}) "
            "until the next batch is committed"
        )
    if minimum == capacities[1]:
        return f"the queue is full: {counts.outstanding} groups are in flight, and queue.capacity is {settings.capacity}"
    slots = settings.running_rollouts - settings.group_size + 1
    return (
        f"every slot is busy: {counts.running_rollouts} rollouts run or wait for a runner, and a group of {settings.group_size} more would be "
        f"over rollout.slots + queue.group_size − 1 = {slots} + {settings.group_size} − 1 = {settings.running_rollouts}"
    )


def next_domain(
    shares: Mapping[str, float], served: Mapping[str, int], accepted: Mapping[str, int]
) -> str | None:
    """The domain of the next group: the domain furthest behind its share among those with accepted groups. None if none has any.

    `shares` are the stage's weights (any scale), `served` its dispatched groups, `accepted` the groups that wait. A domain without
    accepted groups lends its turn and is repaid when groups arrive: over the whole stage if `served` counts the whole stage,
    or at most share·K groups if it counts the last K dispatches. Ties go to the larger share, then to the earlier in `shares`.
    While each of the D domains has groups, served stays within (−(D−1), 1) of its share of the total.

    >>> next_domain({"coding": 0.75, "general": 0.25}, {"coding": 3}, {"coding": 9, "general": 2})
    'general'
    >>> next_domain({"coding": 0.75, "general": 0.25}, {"coding": 3}, {"coding": 9})
    'coding'
    """
    scale = sum(shares.values())
    turn = sum(served.get(domain, 0) for domain in shares) + 1
    best: str | None = None
    best_rank = (-math.inf, 0.0)
    for domain, share in shares.items():
        rank = (round(share / scale * turn - served.get(domain, 0), 9), share)
        if share > 0 and accepted.get(domain, 0) > 0 and rank > best_rank:
            best, best_rank = domain, rank
    return best


def choose_domains(
    shares: Mapping[str, float], served: Mapping[str, int], accepted: Mapping[str, int], room: int
) -> list[str]:
    """The domains of the next groups, in dispatch order, at most `room`: `next_domain` repeated until it returns None.

    >>> choose_domains({"coding": 2, "agent": 1, "general": 1}, {}, {"coding": 9, "agent": 9, "general": 1}, room=8)
    ['coding', 'agent', 'general', 'coding', 'coding', 'agent', 'coding', 'coding']
    """
    served_now, remaining = Counter(served), Counter(accepted)
    chosen: list[str] = []
    while len(chosen) < room and (domain := next_domain(shares, served_now, remaining)) is not None:
        chosen.append(domain)
        served_now[domain] += 1
        remaining[domain] -= 1
    return chosen


def check_queue(settings: QueueSettings) -> None:
    """Raise ConfigurationError, one sentence, if the numbers cannot work: a batch that never fills, a group that never starts."""
    s = settings
    problem = None
    if s.batch_groups < 1 or s.max_staleness < 0:
        problem = f"a batch needs at least 1 group and staleness cannot be negative, not {s.batch_groups} and {s.max_staleness}"
    elif s.capacity < s.batch_groups:
        problem = (
            f"queue.capacity is {s.capacity} but a batch takes {s.batch_groups} groups, which would never be there together: "
            f"set queue.capacity to at least {s.batch_groups} (N >= P)"
        )
    elif s.group_size < 2:
        problem = f"group_size is {s.group_size}, but a group is compared with itself: set it to at least 2"
    elif s.running_rollouts < s.group_size:
        problem = (
            f"running_rollouts is {s.running_rollouts} but a group has {s.group_size} rollouts and would never start: "
            f"set it to at least {s.group_size}"
        )
    elif not 0 <= s.window_fraction <= 1:
        problem = f"window_fraction is {s.window_fraction}: set it between 0 (strict FIFO) and 1"
    elif not 1 <= s.short_batch <= s.batch_groups:
        problem = f"min_batch_groups is {s.short_batch}: set it between 1 and {s.batch_groups}"
    if problem is not None:
        raise ConfigurationError(f"queue: {problem}")


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise ConfigurationError unless a stage's domain shares are finite, not negative, and at least one is above 0."""
    if not shares or any(not 0 <= share < math.inf for share in shares.values()) or sum(shares.values()) <= 0:
        raise ConfigurationError(
            f"stage: shares must be numbers >= 0 with at least one above 0, not {dict(shares)}"
        )


def window_reach(settings: QueueSettings, longest_s: float, mean_s: float) -> float:
    """(min(N, (S+1)·P) + W) / (slots · T_max/T_mean): below 1, the window idles the trainer while the slowest group runs.

    slots = running rollouts / G; `longest_s` and `mean_s` are durations of whole groups, in seconds.
    """
    slots = settings.running_rollouts / settings.group_size
    return settings.reach / (slots * longest_s / mean_s)


def idle_warning(settings: QueueSettings, longest_s: float, mean_s: float) -> str | None:
    """One sentence for the log when `window_reach` is below 1, else None."""
    reach = window_reach(settings, longest_s, mean_s)
    if reach >= 1:
        return None
    by_staleness = (settings.max_staleness + 1) * settings.batch_groups
    larger = " and ".join(
        key
        for key, bound in (("queue.capacity", settings.capacity), ("queue.max_staleness", by_staleness))
        if bound == settings.places
    )
    window = "another queue.policy" if settings.policy == FIFO else "a larger queue.window_fraction"
    return (
        f"the window will idle the trainer: (min(N, (S+1)*P)+W)/(slots*T_max/T_mean) = (min({settings.capacity}, {by_staleness})+{settings.window})/"
        f"({settings.running_rollouts / settings.group_size:g}*{longest_s / mean_s:g}) = {reach:.2f} < 1; "
        f"begin a new run with a larger {larger} or {window}, or shorten the longest groups"
    )
