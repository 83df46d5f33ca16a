"""Trajectory-seconds generated again: what the rollout server worked on, less what is stored of it in attempts that count.

The unit is that of verl#7579: seconds of generation of one trajectory, summed over all of them. A trajectory is a rollout; a *call* is one
completion that the gateway asked for, by the name of its attempt. A call is seconds from the moment in which the proxy before the rollout server
passed it on to its answer, or to the end of the connection that was to carry one. Of the calls of an attempt that counts (the last of its rollout),
those that its stored steps are made of were worth it; everything else was generated for nothing, and again where its rollout went on:

    a completion that was cut in flight, or that nobody was there to take
    steps that were never stored: of an older epoch, of a gateway that died with them
    attempts that another one replaced, whole

An upper bound: what the end of the run interrupted is in it, too. Waiting for new weights within a call counts; between calls it does not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the attempt `of`, like 12:1. `ids` is what it delivered; None: nothing, the connection ended."""

    of: str
    ids: tuple[int, ...] | None
    seconds: float

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Call":
        """A line of the ledger."""
        ids = entry["ids"]
        return cls(entry["of"], None if ids is None else tuple(ids), entry["s"])


@dataclass(frozen=True, slots=True)
class Spent:
    """Trajectory-seconds of generation: all, and of those the ones for nothing."""

    generated_s: float
    again_s: float


def spent(calls: Iterable[Call], stored: Mapping[str, Sequence[tuple[int, ...]]]) -> Spent:
    """`stored` has the actions of every attempt that counts.

    >>> spent([Call("1:1", (5, 6), 2.0), Call("1:2", (5, 6), 3.0), Call("1:2", None, 1.0)], {"1:2": [(5, 6)]})
    Spent(generated_s=6.0, again_s=3.0)
    """
    own: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.ids != ():  # an answer without a token, before a change of weights: nothing was generated
            own[call.of].append(call)
    generated_s = again_s = 0.0
    for of, left in own.items():
        generated_s += sum(call.seconds for call in left)
        for action in stored.get(of, ()):
            used = set(_made_of(action, left) or ())
            left = [call for number, call in enumerate(left) if number not in used]
        again_s += sum(call.seconds for call in left)
    return Spent(generated_s, again_s)


def _made_of(
    action: tuple[int, ...], calls: Sequence[Call], used: tuple[int, ...] = ()
) -> tuple[int, ...] | None:
    """Which of `calls` an action is a chain of; the last may have delivered more than was kept of it. None: of none.

    Whole ones first, and of equal ones the newest: what was lost was lost before it was generated again.
    """
    if not action:
        return used
    found = [
        (len(ids) <= len(action), len(ids), number)
        for number, call in enumerate(calls)
        if number not in used and (ids := call.ids) and ids[: len(action)] == action[: len(ids)]
    ]
    for _, length, number in sorted(found, reverse=True):
        if (chain := _made_of(action[length:], calls, (*used, number))) is not None:
            return chain
    return None
