"""`./ops/chaos`: inject faults into a real run and check it against the ledger. With exit status 1 it prints every violation and the faults to
replay."""

import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from ops.lab.chaos import (
    disk,
    gate,
    leftovers,
    plan,
    table,
)
from ops.lab.chaos import (
    results as fault_results,
)
from ops.lab.chaos.inject import Injector
from ops.lab.chaos.ledger import Ledger, faults_of
from ops.lab.chaos.links import linked
from ops.lab.chaos.plan import Fault, FaultKind, Lengths
from ops.lab.chaos.prepare import make_policy, set_clocks, write_run
from ops.lab.chaos.results import FaultOutcome
from ops.lab.chaos.scenario import ChaosRun, Results, leaves
from orchestrator.bus.base import BusError
from orchestrator.cli.arguments import checked
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import whole
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.home import Home
from orchestrator.runtime.gc_tuning import collect_infrequently
from orchestrator.runtime.log import configure
from orchestrator.runtime.streams import guard
from orchestrator.settings.config import FILE
from sandboxes.owner import records
from sandboxes.reap import default_root

HEIRS_S = 60.0
VAR = Path("var")
ROOT = VAR / "chaos"


def chosen(
    seed: int,
    kills: int,
    least: int,
    only: str,
    without: Collection[FaultKind],
    lengths: Lengths = plan.USUAL,
) -> list[Fault]:
    """The faults of a run; `only` like 17-23 or 17. Raises ValueError, also if none is left."""
    found = _chosen(seed, kills, least, only, without, lengths)
    if not found:
        raise ValueError("no fault is left to inject: request kills, or faults that can be injected here")
    return found


def _chosen(
    seed: int, kills: int, least: int, only: str, without: Collection[FaultKind], lengths: Lengths
) -> list[Fault]:
    if not only:
        return plan.take(seed, kills, least, without, lengths)
    first, _, last = only.partition("-")
    try:
        bounds = whole(first), whole(last or first)
    except ValueError:
        raise ValueError(f"--faults is like 17-23, not {only!r}") from None
    return plan.between(seed, *bounds, without, lengths)


async def _run(
    console: Console, directory: Path, faults: list[Fault], scale: float, patience_s: float
) -> tuple[Results, bool]:
    total = faults[-1].index + 1
    clocks = set_clocks(directory)
    home = Home.at(directory)
    with Ledger(directory) as ledger:
        done = fault_results.outcomes(faults_of(directory))
        completed = {outcome.index for outcome in done}
        remaining = [fault for fault in faults if fault.index not in completed]
        async with linked(ledger) as links:
            scenario = ChaosRun(
                console=console,
                home=home,
                ledger=ledger,
                links=links,
                injector=Injector(home=home, links=links, clocks=clocks, scale=scale),
                faults=remaining,
                shown=table.Shown(console, done, total),
                patience_s=patience_s,
            )
            return await scenario.run(), scenario.interrupted


def main(
    kills: Annotated[int, typer.Option(help="Go on until so many processes were killed.", min=0)] = 36,
    least: Annotated[
        int, typer.Option("--least", help="Go on, too, until so many faults of any kind were done.", min=0)
    ] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the faults, and of the run.")] = 0,
    time_scale: Annotated[
        float, typer.Option(help="Divide every duration by this; 1 is the release gate.", min=0.1, max=1000)
    ] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one final line of JSON on stdout.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds after which what must happen hangs.", min=1, max=86400)
    ] = 180.0,
    faults: Annotated[str, typer.Option(help="Only these of the seed's faults, like 17-23: a replay.")] = "",
    length: Annotated[
        list[str] | None,
        typer.Option(
            help="How long faults last at time scale 1, like stop=120 (seconds; of stop, partition, messages, disk, clock). Repeatable."
        ),
    ] = None,
) -> None:
    """Kill and hurt a real run at random, and show that nothing is lost and nothing trained twice."""
    guard()
    collect_infrequently()
    configure("chaos", level=LogLevel.CRITICAL)
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else 160)
    started = time.monotonic()
    name = f"seed{seed}-x{time_scale:g}" + (f"-faults{faults}" if faults else "")
    directory = (ROOT / name).resolve()
    try:
        lengths = Lengths.of(length or ())
        chosen(seed, kills, least, faults, (), lengths)  # invalid options raise before anything is removed
        _prepare(directory, seed, time_scale, resume)
        small_disk = disk.mount(Home.at(directory).policies)
        planned = chosen(seed, kills, least, faults, () if small_disk else (FaultKind.DISK,), lengths)
        skipped = [] if small_disk else ["disk: a small disk cannot be mounted here, which takes root"]
        for sentence in skipped:
            console.print(f"left out: {sentence}", highlight=False)
        results, interrupted = anyio.run(_run, console, directory, planned, time_scale, patience)
        (directory / leftovers.DRIVER).unlink(missing_ok=True)
    except* (PenstockError, BusError, ValueError) as group:
        for error in leaves(group):
            print(f"chaos: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if interrupted:
        table.show_recoveries(console, fault_results.outcomes(faults_of(directory)))
        print("stopped; go on with the same command and --resume", file=sys.stderr)
        raise SystemExit(130)
    done: list[FaultOutcome] = fault_results.outcomes(faults_of(directory))
    results.problems += [*left_behind(directory), *gate.unmet(planned, done, results.report)]
    table.show(console, done, results)
    if results.violations:
        options = f"--faults {faults}" if faults else f"--kills {kills} --least {least}"
        options += "".join(f" --length {word}" for word in length or ())
        replay = f"./ops/chaos --seed {seed} --time-scale {time_scale:g} {options}"
        console.print(f"logs and ledger: {directory}\nreplay: {replay}", highlight=False, soft_wrap=True)
    else:
        disk.unmount(Home.at(directory).policies)
        leftovers.prune(ROOT)
    if as_json:
        seconds = time.monotonic() - started
        print(
            table.final_line(
                seed=seed,
                scale=time_scale,
                seconds=seconds,
                planned=len(planned),
                done=done,
                results=results,
                left_out=skipped,
            ),
            flush=True,
        )
    if results.violations:
        raise SystemExit(1)


def _prepare(directory: Path, seed: int, scale: float, resume: bool) -> None:
    """Make the run's directory, or keep the one of an interrupted run. What a killed driver left is removed."""
    ROOT.mkdir(parents=True, exist_ok=True)
    leftovers.clear(ROOT)
    if not resume:
        leftovers.remove(directory)
    if not (directory / FILE).exists():
        write_run(directory, seed=seed, scale=scale, model=make_policy(VAR / "chaos-policy", seed))
    ProcessId.mine().write(directory / leftovers.DRIVER)


def left_behind(directory: Path) -> list[str]:
    """Processes and sandboxes of a stopped stack: there must be none (I5). Cleanup daemons of killed workers get a moment to remove theirs."""
    from orchestrator.deploy.embedded.leftovers import find_leftovers

    home = Home.at(directory)
    patience = time.monotonic() + HEIRS_S
    while True:
        processes = [
            f"process {process.pid} of the stack still runs" for process in find_leftovers(home.layout)
        ]
        sandboxes = [
            f"sandbox {record.id} of the stack is still there"
            for record in records(default_root())
            if record.worker.startswith(home.workers)
        ]
        if not (processes or sandboxes) or time.monotonic() > patience:
            return [f"I5: {found}" for found in (*processes, *sandboxes)]
        time.sleep(0.05)


if __name__ == "__main__":
    APP = typer.Typer(add_completion=False)
    APP.command()(main)
    checked(APP)
    APP()
