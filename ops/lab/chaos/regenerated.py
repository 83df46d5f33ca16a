"""Trajectory-seconds generated again: the rollout server's generation time minus the time of stored steps in attempts that count.

The unit is that of verl#7579: seconds of generation of one trajectory, summed over all of them. A trajectory is a rollout. A *call* is one
completion that the gateway requested, under the name of its attempt. Its seconds run from the moment when the proxy in front of the rollout server
forwarded it to its answer, or to the end of the connection that should have carried one. The attempt that counts is the last of its rollout. Calls
that its stored steps are made of were useful. All others were wasted, and their tokens were generated again if the rollout continued:

    a completion that was cut in flight, or that had no receiver any more
    steps that were never stored: of an older epoch, or of a gateway that died with them
    whole attempts that another attempt replaced

This is an upper bound: it includes generation that the end of the run interrupted. Waiting for new weights counts within a call, not between calls.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AttemptCall:
    """One call of the attempt `of`, like 12:1. `ids`: the delivered token ids; None: the connection ended without an answer."""

    of: str
    ids: tuple[int, ...] | None
    seconds: float

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "AttemptCall":
        """A line of the ledger."""
        ids = entry["ids"]
        return cls(entry["of"], None if ids is None else tuple(ids), entry["s"])


@dataclass(frozen=True, slots=True)
class Spent:
    """Trajectory-seconds of generation: in all, and the wasted part."""

    generated_s: float
    again_s: float


def spent(calls: Iterable[AttemptCall], stored: Mapping[str, Sequence[tuple[int, ...]]]) -> Spent:
    """`stored` has the actions of every attempt that counts.

    >>> spent([AttemptCall("1:1", (5, 6), 2.0), AttemptCall("1:2", (5, 6), 3.0), AttemptCall("1:2", None, 1.0)], {"1:2": [(5, 6)]})
    Spent(generated_s=6.0, again_s=3.0)
    """
    by_attempt: dict[str, list[AttemptCall]] = defaultdict(list)
    for call in calls:
        if call.ids != ():  # an answer without a token, before a change of weights: nothing was generated
            by_attempt[call.of].append(call)
    generated_s = again_s = 0.0
    for attempt, unused in by_attempt.items():
        generated_s += sum(call.seconds for call in unused)
        for action in stored.get(attempt, ()):
            used = set(_made_of(action, unused) or ())
            unused = [call for number, call in enumerate(unused) if number not in used]
        again_s += sum(call.seconds for call in unused)
    return Spent(generated_s, again_s)


def _made_of(
    action: tuple[int, ...], calls: Sequence[AttemptCall], used: tuple[int, ...] = ()
) -> tuple[int, ...] | None:
    """The indices of the `calls` that an action is a chain of; only a part of the last may have been stored. None: no such chain exists.

    Calls that fit whole are tried first, and the newest of equal ones: a lost call precedes the call that generated its tokens again.
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
