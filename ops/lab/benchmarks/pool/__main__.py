"""The cost of the data pool at scale: `ops/bench pool [--small] [--only ingest,claim,…] [--directory D] [--json]`.

| measured | how |
|---|---|
| claim | the trainer takes a batch of 32 groups, in a database with 1M groups and 10M steps |
| dispatch to start | the orchestrator's dispatcher and relay, NATS, a runner's assignments: from `groups.dispatched` to `attempts.started` |
| step rows | the real ingest path, 64 messages to a transaction, in turns with a bare COPY of the same bytes |
| state changes | 100,000 of them on rollouts, with heartbeats and the outbox: share of HOT updates, growth of the tables |
| reconcile | NATS killed and its store deleted with 100,000 items open: until all are on their stream again |

`--small` is the size for continuous integration: a fiftieth. It starts its own embedded servers, with the product's settings (fsync on).
"""

import argparse
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from ops.lab.benchmarks.pool import (
    changes,
    claim,
    ingest,
    reconcile,
    start,
)
from ops.lab.benchmarks.pool.filling import fill
from ops.lab.benchmarks.pool.rig import Rig, open_rig
from ops.lab.benchmarks.targets import BenchmarkTarget, Report, show
from orchestrator.contracts.choices import LogLevel
from orchestrator.runtime.log import configure

PARTS = ("claim", "start", "ingest", "changes", "reconcile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of each measurement."""

    ingest_rows: int
    changes: int
    groups: int
    claims: int
    starts: int
    open_items: int


FULL = Size(ingest_rows=20_000, changes=100_000, groups=1_000_000, claims=100, starts=200, open_items=100_000)
# The 95th percentile of 20 claims would be the slowest of them.
SMALL = Size(ingest_rows=4_000, changes=20_000, groups=20_000, claims=60, starts=60, open_items=5_000)


async def measure(
    size: Size, small: bool, only: Sequence[str], where: Path | None, table: Report
) -> list[BenchmarkTarget]:
    """Every requested bar; fills `table`."""
    bars: list[BenchmarkTarget] = []
    history = not {"claim", "start"}.isdisjoint(only)
    async with open_rig(where, small=small) as rig:
        parts: dict[str, Callable[[Rig], Awaitable[list[BenchmarkTarget]]]] = {
            "ingest": lambda rig: ingest.measure(rig, size.ingest_rows, table),
            "changes": lambda rig: changes.measure(rig, size.changes, table),
            "claim": lambda rig: claim.measure(rig, size.claims, table),
            "start": lambda rig: start.measure(rig, size.starts, table),
            "reconcile": lambda rig: reconcile.measure(rig, size.open_items, table),
        }
        if history:
            await fill(rig, size.groups, size.claims, table)
        for name in PARTS:
            if name in only:
                bars += await parts[name](rig)
    return bars


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/bench pool", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument(
        "--small", action="store_true", help="a fiftieth of the size: for continuous integration"
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated: {', '.join(PARTS)}")
    parser.add_argument(
        "--directory", type=Path, help="where the servers keep their data (full size: 25 GiB)"
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    arguments = parser.parse_args(argv)
    only = arguments.only.split(",")
    if unknown := sorted(set(only) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    configure("bench", level=LogLevel.ERROR)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # child processes end with us
    table = Report()
    bars = anyio.run(
        measure,
        SMALL if arguments.small else FULL,
        arguments.small,
        only,
        arguments.directory,
        table,
        backend_options={"use_uvloop": True},  # like the product's processes
    )
    show(bars, table, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
