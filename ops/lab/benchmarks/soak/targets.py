"""The bars. The value of a bar is a slope per 1,000 ended rollouts over the last two thirds; it holds while the slope, less twice its noise, is
at most its target: what is missed grows for certain.

| grows | target per 1,000 rollouts |
|---|---|
| memory of a process; JetStream, weights, other files | `FOREVER` MiB, and `ONCE` MiB over the whole window |
| journals | `FOREVER` MiB, and `SEGMENTS_MIB` over the whole window |
| write-ahead log | `FOREVER` MiB, and `CHECKPOINT_MIB` over the whole window |
| database | `ROWS_MIB`, and `ONCE` MiB over the whole window |
| logs | `LINES_MIB` |
| descriptors of a process | 1, and `FILES` over the whole window; of PostgreSQL `TABLES` |
| threads, processes, what is held in the kernel | 1 |
| rollouts per CPU-second of a process, its decline | `SLOWER` % |

Why: a process within its target grows by less than a GiB in a million rollouts; caches, arenas and statistics fill once. Each descriptor, thread
and control group is taken and given back: if every rollout leaves one, the slope is 1,000. Pools of connections open once, and each session
of PostgreSQL keeps open the files of the tables that it has met. Messages and weights are kept until they are used or too old. Journals
are segments of 16 MiB, which fill up before they go. PostgreSQL keeps what it wrote since its last checkpoint, one every ten minutes: a window of
thirteen minutes sees that grow once. The rows and lines of a rollout stay: their targets are about twice the measured ones
(ops/benchmarks/soak.md). Work per rollout must not grow with the number of rollouts before it.
"""

from collections.abc import Sequence

from ops.lab.benchmarks.soak.fit import Trend, of_level, of_rate
from ops.lab.benchmarks.soak.samples import Figure, Key, Sample, later, series
from ops.lab.benchmarks.targets import BenchmarkTarget, at_least, at_most
from orchestrator.contracts.processes import ProcessRole

PER = 1000.0  # rollouts
MIB = float(1 << 20)
FOREVER = 1.0
ONCE = 16.0
SEGMENTS_MIB = 3 * 16.0
CHECKPOINT_MIB = 6 * 16.0
ROWS_MIB = 12.0
LINES_MIB = 5.0
FILES = 16
TABLES = 512
SLOWER = 5.0
MIN_CPU = 0.02  # of the time: a process that uses less is not worth a bar
MIN_ROLLOUTS = 60
MIN_SYNCS = 3

_UNITS = {Figure.MEMORY: "MiB", Figure.DISK: "MiB"}
_PLURALS = {Figure.MEMORY: "memory", Figure.CPU: "rollouts/CPU-s, decline"}


class Found:
    """The trends of a run, per 1,000 rollouts, in the units of their bars; `rates`: rollouts per CPU-second by process."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.window = later(samples)
        self.trends: dict[Key, Trend] = {}
        self.rates: dict[str, float] = {}
        for key, rollouts, values in series(self.window):
            if key[0] is Figure.CPU:
                if (found := of_rate(rollouts, values)) is not None:
                    self.rates[key[1]], trend = found
                    self.trends[key] = trend.times(-100 * PER)
            elif (level := of_level(rollouts, values)) is not None:
                self.trends[key] = level.times(PER / (MIB if key[0] in _UNITS else 1.0))

    @property
    def rollouts(self) -> int:
        """Ended in the window."""
        return self.window[-1].rollouts - self.window[0].rollouts if self.window else 0

    @property
    def seconds(self) -> float:
        return self.window[-1].at - self.window[0].at if self.window else 0.0

    def used(self, process: str) -> float:
        """The share of a core that a process used."""
        ends = [sample.values.get((Figure.CPU, process)) for sample in (self.window[0], self.window[-1])]
        return (ends[1] - ends[0]) / self.seconds if None not in ends and self.seconds else 0.0  # type: ignore[operator]


def target(key: Key, rollouts: int) -> float:
    """The allowed growth of a figure per 1,000 rollouts, in a window of so many."""
    figure, of = key
    match figure, of:
        case Figure.CPU, _:
            return SLOWER
        case Figure.DISK, "database":
            return ROWS_MIB + ONCE * PER / max(1, rollouts)
        case Figure.DISK, "logs":
            return LINES_MIB
        case Figure.DISK, "journals":
            return FOREVER + SEGMENTS_MIB * PER / max(1, rollouts)
        case Figure.DISK, "write-ahead log":
            return FOREVER + CHECKPOINT_MIB * PER / max(1, rollouts)
        case ((Figure.MEMORY | Figure.DISK), _):
            return FOREVER + ONCE * PER / max(1, rollouts)
        case Figure.DESCRIPTORS, _:
            return FOREVER + (TABLES if of == ProcessRole.POSTGRES else FILES) * PER / max(1, rollouts)
        case _:
            return 1.0


def name(key: Key) -> str:
    """As it stands in the table."""
    figure, of = key
    return of if figure is Figure.KERNEL else f"{of}: {_PLURALS.get(figure, figure)}"


def unit(figure: Figure) -> str:
    """Of a slope."""
    return f"{'CPU %' if figure is Figure.CPU else _UNITS.get(figure, 'number')} per 1,000 rollouts"


def bars_of(found: Found, *, restarts: int, syncs: int, violations: int) -> list[BenchmarkTarget]:
    """All bars. `restarts` of processes, `syncs` of weights; `violations` that the auditor found at the end."""
    bars = [
        at_least("rollouts in the last two thirds", found.rollouts, "count", MIN_ROLLOUTS),
        at_least("weight syncs", syncs, "count", MIN_SYNCS),
        at_most("restarts of processes", restarts, "count", 0),
        at_most("violations of I1-I7", violations, "count", 0),
    ]
    for key, trend in found.trends.items():
        figure, of = key
        if figure is Figure.CPU and found.used(of) < MIN_CPU:
            continue
        most = target(key, found.rollouts)
        bars.append(
            BenchmarkTarget(
                name=name(key),
                value=round(trend.slope, 3),
                unit=unit(figure),
                target=round(most, 3),
                holds=trend.surely <= most,
            )
        )
    return bars
