"""`./ops/demo`: set-up is done; make the policy (cached), run the loop, evaluate before and after, report."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from orchestrator.bus.base import BusError
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import PenstockError
from orchestrator.demo import policy, rollout_servers
from orchestrator.demo.outcome import outcome
from orchestrator.demo.phases import Client, Evaluation, evaluate, publish, until_ended
from orchestrator.demo.prepare import EVAL_ROLLOUTS, SCAFFOLDS, Suite, draw_suite, write_run
from orchestrator.demo.progress import Progress
from orchestrator.demo.report import draw_curve, final_line, percent, show_evaluations, show_outcome
from orchestrator.embedded.process_spec import ProcessState
from orchestrator.embedded.spawn import spawn
from orchestrator.embedded.supervisor import read_status
from orchestrator.home import Home
from orchestrator.log import configure
from orchestrator.plugins import names
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.preflight import check_sandbox

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


@asynccontextmanager
async def connected(directory: Path, stack: subprocess.Popen[bytes]) -> AsyncIterator[Client]:
    """Wait until the run exists and an orchestrator serves it, then connect as any client would.

    PenstockError says what `stack` said when it ended instead.
    """
    home = Home.at(directory)
    deadline = anyio.current_time() + 60
    while (status := read_status(home.layout)) is None or not any(
        process.name == "orchestrator" and process.state is ProcessState.READY for process in status.processes
    ):
        if stack.poll() is not None:
            said = (directory / "up.log").read_text(errors="replace").strip().splitlines() or ["no output"]
            raise PenstockError(said[-1].removeprefix("penstock: "))
        if anyio.current_time() > deadline:
            raise PenstockError(f"the stack did not come up within 60 s; see {directory / 'up.log'}")
        await anyio.sleep(0.1)
    config = home.connected()
    async with (
        open_engine(config.services.database_url, Role.READER, size=2, name="penstock-demo") as engine,
        NatsBus.connect(config.services.nats_url, name="penstock-demo") as bus,
    ):
        async with engine.connect() as connection:
            run = await get_run(connection, config.run.name)
        yield Client(run.name, run.run_id, bus, engine, directory / "ledger.txt")


class Demo:
    """One demo in its own directory."""

    def __init__(self, console: Console, directory: Path, suite: Suite, seconds: float) -> None:
        self._console = console
        self._directory = directory
        self._suite = suite
        self._seconds = seconds

    async def run(self, *, seed: int, setup_s: float, policy_s: float, as_json: bool) -> None:
        """Evaluate, learn, evaluate, report."""
        console = self._console
        with running_stack(self._directory) as stack:
            async with connected(self._directory, stack) as client:
                before = await self._evaluate(client, "before", greedy=False)
                greedy_before = await self._evaluate(client, "greedy-before", greedy=True)
                console.print(f"the loop runs for {self._seconds:.0f} s", highlight=False)
                started = time.monotonic()
                await publish(client, self._suite.train, purpose="train", label="train")
                await until_ended(client, self._seconds * 2 + 120, Progress(client, console).tick)
                run_s = time.monotonic() - started
                console.print()
                after = await self._evaluate(client, "after", greedy=False)
                greedy_after = await self._evaluate(client, "greedy-after", greedy=True)
                run = await outcome(client)
        curve = self._directory / "curve.png"
        draw_curve(run, before, after, curve)
        show_evaluations(console, before, after, (greedy_before, greedy_after))
        show_outcome(console, run)
        console.print(
            f"everything lies in {self._directory}: checkpoint {run.checkpoint}, curve {curve.name}, logs .penstock/logs\n"
            f'ask it more: penstock up -c {self._directory} --only orchestrator &  penstock sql -c {self._directory} "select …"',
            highlight=False,
            soft_wrap=True,
        )
        if as_json:
            line = final_line(
                seed=seed,
                setup_s=setup_s,
                policy_s=policy_s,
                run_s=run_s,
                run=run,
                before=before,
                after=after,
                greedy_before=greedy_before.total[0] / max(1, greedy_before.total[1]),
                greedy_after=greedy_after.total[0] / max(1, greedy_after.total[1]),
                eval_blackbox=after.blackbox,
                eval_by_domain={
                    d: [before.successes[d], before.n[d], after.successes.get(d, 0), after.n.get(d, 0)]
                    for d in before.n
                },
            )
            print(line, flush=True)

    async def _evaluate(self, client: Client, label: str, *, greedy: bool) -> Evaluation:
        def tick(done: int, total: int) -> None:
            if self._console.is_terminal:
                self._console.print(
                    f"\r\x1b[2Kevaluating ({label}): {done} of {total} tasks", end="", highlight=False
                )

        found = await evaluate(
            client,
            self._suite.heldout,
            label=label,
            rollouts=1 if greedy else EVAL_ROLLOUTS,
            greedy=greedy,
            timeout_s=300,
            tick=tick,
        )
        if self._console.is_terminal:
            self._console.print("\r\x1b[2K", end="")
        self._console.print(
            f"held-out success {label}: {percent(*found.total)} in {found.seconds:.0f} s, version {found.version}",
            highlight=False,
        )
        return found


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
) -> None:
    """Take this machine to a policy that has learned, by the real loop."""
    configure("demo", level="error")
    console = Console(stderr=as_json)
    setup_s = float(os.environ.get("PENSTOCK_SETUP_S", "0"))
    started = time.monotonic()
    try:
        anyio.run(check_sandbox, sandbox)  # before minutes are spent
        servers = rollout_servers.section(rollout_server, console)
        model = start.resolve() if start else policy.make(VAR / "policy", seed, console)
    except (PenstockError, ValueError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        raise SystemExit(1) from None
    policy_s = time.monotonic() - started
    suite = draw_suite(seed)
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
    )
    if sandbox == "local":
        console.print(
            "WARNING: --sandbox local runs the policy's commands on this machine WITHOUT isolation",
            style="bold red",
        )
    demo = Demo(console, directory.resolve(), suite, seconds)

    async def work() -> None:
        await demo.run(seed=seed, setup_s=setup_s, policy_s=policy_s, as_json=as_json)

    try:
        anyio.run(work)
    except* (PenstockError, BusError, ValueError) as group:
        for error in group.exceptions:
            print(f"demo: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except* KeyboardInterrupt:
        print(f"stopped; the run can be continued with: penstock up -c {directory}", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    typer.run(main)
