"""Start and end of the calls of an attempt. A step records when its reply was ready, its generation time and its queue time. An older step
only has the time when its record reached the data pool: its end is placed as late as its record, its tools and the later calls allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class Timed(Protocol):
    """The known times of one call; seconds. `ended`: when its reply was ready; `at`: when its record was committed."""

    @property
    def idx(self) -> int: ...
    @property
    def at(self) -> datetime: ...
    @property
    def ended(self) -> datetime | None: ...
    @property
    def t_queue(self) -> float | None: ...
    @property
    def t_gen(self) -> float | None: ...
    @property
    def t_gap(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpan:
    """Unix seconds: arrival of the call, start of its generation, its reply. `measured`: recorded times; else they are reconstructed."""

    start: float
    generation: float
    end: float
    measured: bool = False


def spans(calls: Sequence[Timed], tools: Mapping[int, float]) -> list[CallSpan]:
    """One span per call, in order. `tools`: start of the first tool of a call's reply, unix seconds by idx, where known.

    Without `ended`, end_i = min(at_i, tool_i, end_{i+1} − generation_{i+1} − queue_{i+1} − gap_{i+1}), from the last call to the first.
    """
    found: list[CallSpan] = []
    latest = float("inf")
    for call in reversed(calls):
        at_most = min(call.at.timestamp(), latest, tools.get(call.idx, latest))
        end = at_most if call.ended is None else call.ended.timestamp()
        generation = end - (call.t_gen or 0.0)
        start = generation - (call.t_queue or 0.0)
        found.append(CallSpan(start=start, generation=generation, end=end, measured=call.ended is not None))
        latest = min(latest, start - (call.t_gap or 0.0))
    return found[::-1]
