"""Growth during a run: `ops/bench soak [--minutes N] [--json]` (ops/benchmarks/soak.md).

A whole stack with embedded PostgreSQL, NATS and rollout server, trainer, runners and dashboard works under load for N minutes. It is read up to
150 times: memory, descriptors, threads and CPU time of each process, bytes on disk by part, control groups, mounts, sandboxes and shared memory.
Each bar is a slope per 1,000 rollouts over the last two thirds, with its noise (`fit`); `targets` has the targets and their reasons. At the end the
run is drained and audited.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import anyio

from ops.lab.benchmarks.soak.run import Soaked, soak, write_run
from ops.lab.benchmarks.soak.samples import Figure, Sample
from ops.lab.benchmarks.soak.targets import Found, bars_of, name, target, unit
from ops.lab.benchmarks.targets import BenchmarkTarget, Report, show
from ops.lab.chaos.prepare import make_policy
from ops.lab.chaos.scenario import leaves
from ops.lab.demo.main import running_stack
from ops.lab.run_directory import remove
from orchestrator.bus.base import BusError
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import option, real
from orchestrator.runtime.log import configure

VAR = Path("var")
ROOT = VAR / "soak"
KEEP_RUNS = 2
MINUTES = 20.0
MAX_MINUTES = 10_080.0  # a week


def tell(found: Found, done: Soaked, table: Report) -> None:
    """Print the table."""
    first, last = done.samples[0], done.samples[-1]
    table.add_row(
        "run",
        f"{last.at:8.1f} s",
        f"{last.rollouts - first.rollouts} rollouts, {(last.rollouts - first.rollouts) / last.at:.2f}/s; "
        f"{done.syncs} weight syncs; {len(done.samples)} readings; first rollout after {done.started_s:.0f} s",
    )
    for process, rate in sorted(found.rates.items(), key=lambda item: item[1]):
        table.add_row(
            f"{process}: rollouts per CPU-second",
            f"{rate:10.2f}",
            f"{100 * found.used(process):5.1f} % of a core",
        )
    for key, trend in found.trends.items():
        values = [sample.values[key] for sample in found.window if key in sample.values]
        now = (
            f"{values[0] / (1 << 20):.1f} → {values[-1] / (1 << 20):.1f} MiB; "
            if key[0] in (Figure.MEMORY, Figure.DISK)
            else ("" if key[0] is Figure.CPU else f"{values[0]:g} → {values[-1]:g}; ")
        )
        table.add_row(
            name(key),
            f"{trend.slope:10.3f} ± {trend.noise:.3f} {unit(key[0])}",
            f"{now}at most {target(key, found.rollouts):g}",
        )


def show_reading(sample: Sample) -> None:
    """One line while it runs, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{sample.at:6.0f} s  {sample.rollouts} rollouts", end="", file=sys.stderr, flush=True)


def figures_of(found: Found, done: Soaked) -> dict[str, object]:
    """The data behind the bars, for machines."""
    return {
        "rollouts": found.rollouts,
        "seconds": round(found.seconds, 1),
        "rollouts_per_cpu_s": {process: round(rate, 3) for process, rate in found.rates.items()},
        "slopes": {
            name(key): {"slope": round(trend.slope, 4), "noise": round(trend.noise, 4), "unit": unit(key[0])}
            for key, trend in found.trends.items()
        },
        "series": [
            {"at": round(sample.at, 1), "rollouts": sample.rollouts}
            | {name(key): value for key, value in sample.values.items()}
            for sample in done.samples
        ],
    }


def measure(minutes: float, table: Report) -> tuple[list[BenchmarkTarget], dict[str, object]]:
    """The bars and the figures of a new run, whose directory stays if one does not hold."""
    model = make_policy(VAR / "chaos-policy", 0)
    directory = write_run(ROOT, model)
    with running_stack(directory) as stack:
        done = anyio.run(soak, directory, stack, 60 * minutes, show_reading)
    found = Found(done.samples)
    tell(found, done, table)
    bars = bars_of(found, restarts=done.samples[-1].restarts, syncs=done.syncs, violations=done.violations)
    if all(bar.holds for bar in bars):
        for old in sorted(path for path in ROOT.iterdir() if path.is_dir())[:-KEEP_RUNS]:
            remove(old)
    else:
        table.add_row("the run's directory, with its logs", str(directory), "")
    return bars, figures_of(found, done)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="ops/bench soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=option(real, least=0.01, most=MAX_MINUTES),
        default=MINUTES,
        help="under load (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--series", type=Path, help="write every reading to this file, as JSON")
    options = parser.parse_args()
    configure("bench", level=LogLevel.ERROR)
    try:
        table = Report()
        bars, figures = measure(options.minutes, table)
    except* (PenstockError, BusError, ValueError, OSError) as group:
        for error in leaves(group):
            print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    show(bars, table, as_json=False)
    readings = figures.pop("series")
    if options.series is not None:
        options.series.write_text(json.dumps(readings), encoding="utf-8")
    if options.json:
        print(json.dumps({"bars": [asdict(bar) for bar in bars], "figures": figures}))


if __name__ == "__main__":
    main()
