"""`./ops/demo`: set-up is done; make the policy (cached), run the loop, evaluate before and after, report."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import anyio
import typer
from rich.console import Console

from orchestrator.bus.base import BusError
from orchestrator.collector import collect_seldom
from orchestrator.contracts.errors import PenstockError
from orchestrator.demo import policy, rollout_servers
from orchestrator.demo.keep import keep
from orchestrator.demo.prepare import SCAFFOLDS, prune, write_run
from orchestrator.embedded.spawn import spawn
from orchestrator.log import configure
from orchestrator.plugins import names

VAR = Path("var")


@contextlib.contextmanager
def running_stack(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock up` as a process of ours: stopped by its id at the end, and by the kernel when we are killed."""
    process = spawn(
        [sys.executable, "-m", "orchestrator.cli", "up", "--config", str(directory)],
        log=directory / "up.log",
        env=os.environ,
        death_signal=signal.SIGTERM,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _check_sandbox(name: str) -> None:
    from orchestrator.preflight import check_sandbox

    anyio.run(check_sandbox, name)


def main(
    as_json: Annotated[bool, typer.Option("--json", help="Print one final line of JSON on stdout.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of suite, policy and sampling.")] = 0,
    control: Annotated[
        bool,
        typer.Option("--control", help="Permute the advantages within each batch: nothing may be learned."),
    ] = False,
    minutes: Annotated[float, typer.Option(help="How long the loop runs, evaluations apart.")] = 4.8,
    start: Annotated[
        Path | None,
        typer.Option("--policy", help="Start from this Hugging Face directory instead of the demo's policy."),
    ] = None,
    sandbox: Annotated[
        str, typer.Option(help="Sandbox provider: bubblewrap, or local WITHOUT isolation.")
    ] = "bubblewrap",
    rollout_server: Annotated[
        rollout_servers.Kind,
        typer.Option(help="embedded, or a real SGLang on this machine's CPU (set up on first use, 2.9 GB)."),
    ] = rollout_servers.Kind.EMBEDDED,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the trainer's passes (trainer.dtype).")
    ] = "float32",
    kept: Annotated[
        bool, typer.Option("--keep", help="Leave the dashboard running on what the run left behind.")
    ] = False,
) -> None:
    """Take this machine to a policy that has learned, by the real loop."""
    collect_seldom()
    configure("demo", level="error")
    console = Console(stderr=as_json)
    started = time.monotonic()
    setup_s = float(os.environ.get("PENSTOCK_SETUP_S", "0"))
    began = float(os.environ.get("PENSTOCK_BEGAN", time.time()))
    try:
        made = start is not None or policy.is_made(VAR / "policy", seed)
        if not made or rollout_server is not rollout_servers.Kind.EMBEDDED:
            _check_sandbox(sandbox)  # before minutes are spent; `penstock up` does it in any case
        servers = rollout_servers.section(rollout_server, console)
        model = start.resolve() if start else policy.make(VAR / "policy", seed, console)
    except (PenstockError, ValueError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        raise SystemExit(1) from None
    policy_s = time.monotonic() - started
    scaffolds = {name: share for name, share in SCAFFOLDS.items() if name in names("scaffolds")}
    seconds = minutes * 60
    directory = write_run(
        VAR / "demo",
        seed=seed,
        model=model,
        seconds=seconds,
        scaffolds=scaffolds,
        sandbox=sandbox,
        control=control,
        servers=servers,
        dtype=dtype,
    )
    if sandbox == "local":
        console.print(
            "WARNING: --sandbox local runs the policy's commands on this machine WITHOUT isolation",
            style="bold red",
        )
    try:
        with running_stack(directory) as stack:
            from orchestrator.demo.course import Course  # while the stack starts
            from orchestrator.demo.suite import draw_suite

            found = anyio.run(Course(console, directory, stack, draw_suite(seed), seconds).run)
        prune(directory.parent)
        from orchestrator.demo import report

        report.show(console, directory, found)
        if kept:
            console.print(
                f"dashboard: {keep(directory)}\nstop it with: penstock down -c {directory}",
                highlight=False,
                soft_wrap=True,
            )
        if as_json:
            print(
                report.final_line(seed=seed, setup_s=setup_s, policy_s=policy_s, began=began, found=found),
                flush=True,
            )
        if found.audit.violations:
            raise SystemExit(1)
    except* (PenstockError, BusError, ValueError) as group:
        for error in group.exceptions:
            print(f"demo: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except* KeyboardInterrupt:
        print(f"stopped; the run can be continued with: penstock up -c {directory}", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    typer.run(main)
