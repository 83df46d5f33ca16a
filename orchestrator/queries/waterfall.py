"""Time of an attempt as bars: queue, generation, tools, verification. Seconds since the attempt started.

Steps record when their reply was ready, their generation time and the call's queue time, which is drawn before it; concurrent calls overlap, as
they did. The time between them, while no call of the lease is in flight, is the agent's:

    |-- queue --|------ generation ------|-- gap --|-- queue --|…
         |-- queue --|-- generation --|

Older steps record only durations, and the gap between the previous reply and their request. They are laid end to end, and a request that
came while another was in flight ends where the data pool recorded it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class BarKind(StrEnum):
    """The activity of an attempt during a time."""

    WAITING = "waiting"  # for a runner
    START = "start"  # sandbox and program, until the first request
    QUEUE = "queue"  # for a rollout server
    GENERATION = "generation"  # of one reply
    FIRST = "first"  # its part before the first token
    GAP = "gap"  # the agent and its tools, between a reply and the next request
    TOOL = "tool"  # one execution of a tool
    FINISH = "finish"  # after the last reply
    REPORTED = "reported"  # until the last step is stored
    VERIFY_WAIT = "verify_wait"  # for a verifier runner
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallBar:
    """`step` and `call`: set if it belongs to one; `name` of a tool."""

    kind: BarKind
    start: float
    end: float
    step: int | None = None
    call: int | None = None
    name: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds as a step records them. From the attempt's start: `recorded`, its arrival in the data pool, and `ended`, when its reply was
    ready; None: unknown. `lease`: the epoch that recorded it."""

    idx: int
    queue: float
    first: float
    generation: float
    gap: float
    recorded: float
    ended: float | None = None
    lease: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTimes:
    """One execution, in seconds since the attempt's start."""

    step: int
    call: int
    name: str
    start: float
    end: float
    exit_code: int | None


def step_bars(steps: Sequence[StepTimes], leases: Mapping[int, float] | None = None) -> list[WaterfallBar]:
    """The bars of an attempt's steps, in order. `leases`: start of each by epoch, from the attempt's start; default: at the attempt's
    start.

    >>> first = StepTimes(idx=0, queue=1, first=0, generation=2, gap=0, recorded=9, ended=4)
    >>> second = StepTimes(idx=1, queue=2, first=0, generation=3, gap=0, recorded=9, ended=6.5)
    >>> [(bar.kind.value, bar.start, bar.end) for bar in step_bars([first, second])]
    [('start', 0.0, 1.0), ('queue', 1.0, 2.0), ('generation', 2.0, 4.0), ('queue', 1.5, 3.5), ('generation', 3.5, 6.5)]

    Without `ended`:
    >>> first = StepTimes(idx=0, queue=1, first=0, generation=2, gap=0, recorded=4)
    >>> second = StepTimes(idx=1, queue=0, first=0, generation=1, gap=3, recorded=9)
    >>> [(bar.kind.value, bar.start, bar.end) for bar in step_bars([first, second])]
    [('start', 0.0, 1.0), ('queue', 1.0, 2.0), ('generation', 2.0, 4.0), ('gap', 4.0, 7.0), ('generation', 7.0, 8.0)]

    The time to the first token is a part of the generation; older runs counted the queue in it, so it may be longer there.
    >>> [(bar.kind.value, bar.start, bar.end) for bar in step_bars([StepTimes(idx=0, queue=1, first=5, generation=2, gap=0, recorded=4)])]
    [('start', 0.0, 1.0), ('queue', 1.0, 2.0), ('generation', 2.0, 4.0), ('first', 2.0, 4.0)]
    """
    if all(step.ended is not None for step in steps):
        return _placed(steps, leases or {})
    bars: list[WaterfallBar] = []
    ended: float | None = None
    for step in steps:
        busy = step.queue + step.generation
        if ended is None:
            end = max(busy, step.recorded)
            bars.append(WaterfallBar(kind=BarKind.START, start=0.0, end=round(float(end - busy), 4)))
        elif step.gap > 0:
            end = ended + step.gap + busy
            bars.append(_bar(BarKind.GAP, ended, ended + step.gap, step.idx))
        else:
            end = max(ended, min(ended + busy, step.recorded))
        bars += _call(step, end)
        ended = end if ended is None else max(ended, end)
    return bars


def _placed(steps: Sequence[StepTimes], leases: Mapping[int, float]) -> list[WaterfallBar]:
    """Bars of steps with known times. A gap belongs to the call that ends it."""
    between: dict[int, WaterfallBar] = {}
    lease_end: dict[int, float] = {}  # by lease
    spans = {
        step.idx: ((step.ended or 0.0) - step.generation - step.queue, step.ended or 0.0) for step in steps
    }
    for step in sorted(steps, key=lambda step: spans[step.idx]):
        start, end = spans[step.idx]
        if step.lease not in lease_end:
            between[step.idx] = WaterfallBar(
                kind=BarKind.START, start=min(start, leases.get(step.lease, 0.0)), end=round(float(start), 4)
            )
        elif start > lease_end[step.lease]:
            between[step.idx] = _bar(BarKind.GAP, lease_end[step.lease], start, step.idx)
        lease_end[step.lease] = max(end, lease_end.get(step.lease, end))
    bars: list[WaterfallBar] = []
    for step in steps:
        bars += [between[step.idx]] if step.idx in between else []
        bars += _call(step, spans[step.idx][1])
    return bars


def _call(step: StepTimes, end: float) -> list[WaterfallBar]:
    """One call, whose reply was ready at `end`."""
    generation = end - step.generation
    bars = [_bar(BarKind.GENERATION, generation, end, step.idx)]
    if step.queue > 0:
        bars.insert(0, _bar(BarKind.QUEUE, generation - step.queue, generation, step.idx))
    if (first := min(step.first, step.generation)) > 0:
        bars.append(_bar(BarKind.FIRST, generation, generation + first, step.idx))
    return bars


def tool_bars(tools: Sequence[ToolTimes]) -> list[WaterfallBar]:
    """The bars of tool executions."""
    return [
        WaterfallBar(
            kind=BarKind.TOOL,
            start=round(tool.start, 4),
            end=round(tool.end, 4),
            step=tool.step,
            call=tool.call,
            name=tool.name,
            detail="" if tool.exit_code is None else f"exit {tool.exit_code}",
        )
        for tool in tools
    ]


def _bar(kind: BarKind, start: float, end: float, step: int) -> WaterfallBar:
    return WaterfallBar(kind=kind, start=round(float(start), 4), end=round(float(end), 4), step=step)
