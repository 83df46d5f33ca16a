"""The throughput of a closed queueing network: exact bounds, and mean value analysis. Pure; times are seconds, throughputs per second.

A closed network has a fixed number of customers: here the rollouts that hold a slot. Each visits stations that serve one at a time (`demands`,
seconds of service per cycle) and spends `think` seconds without waiting for others (tools, a starting sandbox).
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThroughputBounds:
    """Lower and upper bound for every network with these demands, cycles per second."""

    least: float
    most: float


def asymptotic(customers: int, demands: Sequence[float], think: float) -> ThroughputBounds:
    """n ÷ (n·D + Z) ≤ X(n) ≤ min(1 ÷ D_max, n ÷ (D + Z)), with D the sum of demands and Z the think time.

    Source: Lazowska, Zahorjan, Graham, Sevcik, Quantitative System Performance, 1984, chapter 5.

    20 customers, stations of 1 s and 2 s, 30 s of thinking:

    >>> bounds = asymptotic(20, [1.0, 2.0], 30.0)
    >>> round(bounds.least, 4), round(bounds.most, 4)
    (0.2222, 0.5)
    """
    assert customers >= 1 and think >= 0 and all(demand >= 0 for demand in demands)
    total, longest = sum(demands), max(demands, default=0.0)
    assert total + think > 0, "a cycle takes some time"
    unqueued = customers / (total + think)
    return ThroughputBounds(
        customers / (customers * total + think), min(unqueued, 1 / longest) if longest else unqueued
    )


@dataclass(frozen=True, slots=True)
class Means:
    """Means of a network at its number of customers: cycles per second, and seconds of one cycle, including waits and thinking."""

    throughput: float
    cycle: float


def mean_values(customers: int, demands: Sequence[float], think: float) -> Means:
    """Exact mean value analysis of one class: R_k(n) = D_k · (1 + Q_k(n − 1)), X(n) = n ÷ (Z + ΣR), Q_k(n) = X(n) · R_k(n).

    Source: Reiser, Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 27 (1980).

    >>> found = mean_values(20, [1.0, 2.0], 30.0)
    >>> round(found.throughput, 4), round(found.cycle, 2)
    (0.4681, 42.73)
    """
    assert customers >= 1
    queues = [0.0] * len(demands)
    throughput = cycle = 0.0
    for count in range(1, customers + 1):
        residence_times = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
        cycle = think + sum(residence_times)
        throughput = count / cycle
        queues = [throughput * residence for residence in residence_times]
    return Means(throughput, cycle)


def parallel(demand: float, servers: float) -> tuple[float, float]:
    """A station that serves `servers` at a time, approximated by one that serves one and a delay: (demand ÷ m, demand · (m − 1) ÷ m).

    Exact when idle and when saturated, close in between. Source: Seidmann, Schweitzer, Shalev-Oren, Large Scale Systems 12 (1987).

    >>> parallel(8.0, 4)
    (2.0, 6.0)
    """
    assert demand >= 0 and servers >= 1
    return demand / servers, demand * (servers - 1) / servers
