"""`./ops/demo`, after the set-up: make the policy (cached), run the loop, evaluate before and after, report."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import typer
from rich.console import Console

from ops.lab.demo import policy, rollout_servers
from ops.lab.demo.keep import keep
from ops.lab.demo.prepare import SCAFFOLDS, prune, write_run
from orchestrator.bus.base import BusError
from orchestrator.cli.arguments import checked
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.cluster.topology import ServerEngine
from orchestrator.deploy.embedded.spawn import spawn
from orchestrator.runtime.gc_tuning import collect_infrequently
from orchestrator.runtime.log import configure
from orchestrator.runtime.plugins import names
from orchestrator.runtime.streams import guard

if TYPE_CHECKING:
    from ops.lab.demo.outcome import Results

VAR = Path("var")
# The result depends on the amount of training, not on other load on the machine.
TRAIN_STEPS = 64
MAX_MINUTES = 30.0


@contextlib.contextmanager
def running_stack(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock up` as a child process: stopped by its id at the end, and by the kernel if this process is killed."""
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


def _model_and_servers(
    start: Path | None,
    seed: int,
    sandbox: str,
    rollout_server: ServerEngine,
    console: Console,
) -> tuple[Path, str]:
    """The policy to start from and the configuration of its rollout servers. What cannot work fails before minutes are spent: `penstock up`
    checks the sandbox again."""
    policy_exists = start is not None or policy.is_made(VAR / "policy", seed)
    if not policy_exists or rollout_server is not ServerEngine.EMBEDDED:
        from orchestrator.deploy.preflight import check_sandbox

        anyio.run(check_sandbox, sandbox)
    servers = rollout_servers.section(rollout_server, console)
    return start.resolve() if start else policy.make(VAR / "policy", seed, console), servers


def _run(console: Console, directory: Path, seed: int, seconds: float, train_steps: int) -> "Results":
    """Start the stack, run the loop in it, and end it."""
    with running_stack(directory) as stack:
        from ops.lab.demo.scenario import DemoRun  # while the stack starts
        from ops.lab.demo.suite import draw_suite

        scenario = DemoRun(
            console,
            directory,
            stack=stack,
            suite=draw_suite(seed),
            seconds=seconds,
            train_steps=train_steps,
        )
        return anyio.run(scenario.run)


def main(
    as_json: Annotated[bool, typer.Option("--json", help="Print one final line of JSON on stdout.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of suite, policy and sampling.")] = 0,
    control: Annotated[
        bool,
        typer.Option("--control", help="Permute the advantages within each batch: nothing may be learned."),
    ] = False,
    train_steps: Annotated[
        int, typer.Option(help="How many train steps the loop takes, two to a batch.", min=0)
    ] = TRAIN_STEPS,
    minutes: Annotated[
        float, typer.Option(help="How long the loop may run at most, evaluations apart.", min=0.1, max=1440)
    ] = MAX_MINUTES,
    start: Annotated[
        Path | None,
        typer.Option("--policy", help="Start from this Hugging Face directory instead of the demo's policy."),
    ] = None,
    sandbox: Annotated[
        str, typer.Option(help="Sandbox provider: bubblewrap, or local WITHOUT isolation.")
    ] = "bubblewrap",
    rollout_server: Annotated[
        ServerEngine,
        typer.Option(help="embedded, or a real SGLang on this machine's CPU (set up on first use, 2.9 GB)."),
    ] = ServerEngine.EMBEDDED,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the trainer's passes (trainer.dtype).")
    ] = "float32",
    kept: Annotated[
        bool, typer.Option("--keep", help="Leave the dashboard running on what the run left behind.")
    ] = False,
) -> None:
    """Take this machine to a policy that has learned, by the real loop."""
    guard()
    collect_infrequently()
    configure("demo", level=LogLevel.ERROR)
    console = Console(stderr=as_json)
    started = time.monotonic()
    setup_s = float(os.environ.get("PENSTOCK_SETUP_S", "0"))
    demo_started = float(os.environ.get("PENSTOCK_BEGAN", time.time()))
    try:
        model, servers = _model_and_servers(start, seed, sandbox, rollout_server, console)
    except (PenstockError, ValueError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        raise SystemExit(1) from None
    policy_s = time.monotonic() - started
    seconds = minutes * 60
    directory = write_run(
        VAR / "demo",
        seed=seed,
        model=model,
        seconds=seconds,
        train_steps=train_steps,
        scaffolds={name: share for name, share in SCAFFOLDS.items() if name in names("scaffolds")},
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
        found = _run(console, directory, seed, seconds, train_steps)
        prune(directory.parent)
        from ops.lab.demo import report

        report.show(console, directory, found, control=control)
        if kept:
            console.print(
                f"dashboard: {keep(directory)}\nstop it with: penstock down -c {directory}",
                highlight=False,
                soft_wrap=True,
            )
        if as_json:
            print(
                report.final_line(
                    seed=seed,
                    control=control,
                    setup_s=setup_s,
                    policy_s=policy_s,
                    began=demo_started,
                    found=found,
                ),
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
    APP = typer.Typer(add_completion=False)
    APP.command()(main)
    checked(APP)
    APP()
