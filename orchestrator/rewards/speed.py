"""The speed bonus: performance · h(T/T_base) with h(x) = 1/(1+x), paid once, at the end of a rollout. A fast failure earns no bonus, and a
rollout that solves a hundredth of its task earns a hundredth of the bonus of an equally fast complete solution.

T is the agent's own time: the attempt's wall time without platform queueing (waiting for the gateway, a rollout server or a
sandbox), which does not depend on the policy. T_base is the task's reference time, or else the median of the member's successful
siblings. A lone success is its own base.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.contracts.states import SpeedBase

MIN_S = 1e-3  # the minimum of durations: a clock's resolution must not make a ratio infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One member's bonus and its inputs. Unpaid: `bonus` is 0 and the base is None. Times in seconds."""

    agent_s: float  # T
    base_s: float | None = None  # T_base
    base: SpeedBase | None = None
    bonus: float = 0.0  # performance · h(T/T_base), in (0, 1)


def at_least_shortest(own_s: float) -> float:
    """T from the agent's own time, which counts no waiting for the platform: at least MIN_S."""
    return max(MIN_S, own_s)


def h(x: float) -> float:
    """1/(1+x), decreasing: 1 for zero time, 1/2 at the base time, 1/3 at twice the base time."""
    return 1 / (1 + x)


def speed_bonuses(
    performance: Sequence[float], agent_s: Sequence[float], reference_s: float | None = None
) -> list[Speed]:
    """The bonuses of a group's trainable members, in the order of the arguments.

    Three of four succeed, after 10, 20 and 40 s. Their bases are the medians of the other two: 30, 25 and 15 s.

    >>> [round(s.bonus, 3) for s in speed_bonuses([1, 1, 0, 1], [10, 20, 5, 40])]
    [0.75, 0.556, 0.0, 0.273]
    >>> [round(s.bonus, 3) for s in speed_bonuses([1, 1, 0, 0.5], [10, 20, 5, 40], reference_s=20)]
    [0.667, 0.5, 0.0, 0.167]
    """
    assert len(performance) == len(agent_s)
    assert reference_s is None or reference_s > 0
    times = [max(MIN_S, t) for t in agent_s]
    speeds: list[Speed] = []
    for i, t in enumerate(times):
        if performance[i] <= 0:
            speeds.append(Speed(agent_s=t))
            continue
        siblings = [sibling for j, sibling in enumerate(times) if j != i and performance[j] > 0]
        if reference_s is not None:
            base, base_s = SpeedBase.REFERENCE, reference_s
        elif siblings:
            base, base_s = SpeedBase.SIBLINGS, median(siblings)
        else:
            base, base_s = SpeedBase.ITSELF, t
        speeds.append(Speed(agent_s=t, base_s=base_s, base=base, bonus=performance[i] * h(t / base_s)))
    return speeds
