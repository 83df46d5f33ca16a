"""What the data pool costs at scale: `ops/bench pool [--small] [--only ingest,claim,…] [--directory D] [--json]`.

| measured | how |
|---|---|
| claim | the trainer's take of a batch of 32 groups, with 1M groups and 10M steps behind it |
| dispatch to start | the orchestrator's dispatcher and relay, NATS, a runner's assignments: from `groups.dispatched` to `attempts.started` |
| step rows | the real ingest path, 64 messages to a transaction, in turns with a bare COPY of the same bytes |
| state changes | 100,000 of them on rollouts, with heartbeats and the outbox beside them: share of HOT updates, growth of the tables |
| reconcile | NATS killed and its store deleted with 100,000 items open: until every one lies on its stream again |

`--small` is the size for continuous integration: a fiftieth. Servers of its own, embedded, with the product's settings (fsync on).
"""

import argparse
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from orchestrator.benchmarks.bars import Bar, Report, show
from orchestrator.benchmarks.pool import changes, claim, ingest, reconcile, start
from orchestrator.benchmarks.pool.filling import fill
from orchestrator.benchmarks.pool.rig import Rig, open_rig
from orchestrator.log import configure

PARTS = ("claim", "start", "ingest", "changes", "reconcile")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    ingest_rows: int
    changes: int
    groups: int
    claims: int
    starts: int
    open_items: int


FULL = Size(20_000, 100_000, 1_000_000, 100, 200, 100_000)
SMALL = Size(4_000, 20_000, 20_000, 60, 60, 5_000)  # p95 of 20 claims would be the slowest of them


async def measure(
    size: Size, small: bool, only: Sequence[str], where: Path | None, table: Report
) -> list[Bar]:
    """Every bar that was asked for; fills `table`."""
    bars: list[Bar] = []
    history = not {"claim", "start"}.isdisjoint(only)
    async with open_rig(where, small=small) as rig:
        parts: dict[str, Callable[[Rig], Awaitable[list[Bar]]]] = {
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
    given = parser.parse_args(argv)
    only = given.only.split(",")
    if unknown := sorted(set(only) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    configure("bench", level="error")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # processes of ours end with us
    table = Report()
    bars = anyio.run(
        measure, SMALL if given.small else FULL, given.small, only, given.directory, table,
        backend_options={"use_uvloop": True},  # as the product's processes
    )  # fmt: skip
    show(bars, table, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
