"""The demo's course, on a starting stack: evaluate, let the loop run, evaluate again, audit."""

import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from rich.console import Console

from ops.lab.demo.keep import url_of
from ops.lab.demo.outcome import Results, outcome
from ops.lab.demo.phases import (
    Client,
    Evaluation,
    evaluate,
    publish,
    until_ended,
)
from ops.lab.demo.progress import Progress
from ops.lab.demo.report import percent
from ops.lab.demo.suite import EVAL_ROLLOUTS, Suite
from orchestrator.audit import Report, audit
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from sandboxes.reap import default_root

START_S = 300.0  # until a stack is up, on a busy machine


@asynccontextmanager
async def connected(directory: Path, stack: subprocess.Popen[bytes]) -> AsyncIterator[Client]:
    """Wait until the run exists and an orchestrator serves it, then connect as any client would.

    If `stack` ends instead, raises PenstockError with its last output.
    """
    home = Home.at(directory)
    deadline = anyio.current_time() + START_S
    while (status := read_status(home.layout)) is None or not any(
        process.name == ProcessRole.ORCHESTRATOR and process.state is ProcessState.READY
        for process in status.processes
    ):
        if stack.poll() is not None:
            output = (directory / "up.log").read_text(errors="replace").strip().splitlines() or ["no output"]
            raise PenstockError(output[-1].removeprefix("penstock: "))
        if anyio.current_time() > deadline:
            raise PenstockError(f"the stack did not come up within {START_S:g} s; see {directory / 'up.log'}")
        await anyio.sleep(0.1)
    config = home.connected()
    async with (
        open_engine(config.services.database_url, Role.READER, size=2, name="penstock-demo") as engine,
        NatsBus.connect(config.services.nats_url, name="penstock-demo") as bus,
    ):
        async with engine.connect() as connection:
            run = await get_run(connection, config.run.name)
        yield Client(run=run.name, run_id=run.run_id, bus=bus, engine=engine, ledger=directory / "ledger.txt")


class DemoRun:
    """One demo in its own directory, on its own stack. `rollouts`: tries per held-out task at temperature 1."""

    def __init__(
        self,
        console: Console,
        directory: Path,
        *,
        stack: subprocess.Popen[bytes],
        suite: Suite,
        seconds: float,
        train_steps: int = 0,
        rollouts: int = EVAL_ROLLOUTS,
    ) -> None:
        self._console = console
        self._directory = directory
        self._stack = stack
        self._seconds = seconds
        self._train_steps = train_steps
        self._suite = suite
        self._rollouts = rollouts

    async def run(self) -> Results:
        """Evaluate, learn, evaluate, audit."""
        console = self._console
        async with connected(self._directory, self._stack) as client:
            if dashboard := url_of(Home.at(self._directory)):
                console.print(f"dashboard: {dashboard}", highlight=False, soft_wrap=True)
            before = await self._evaluate(client, "before", greedy=False)
            greedy_before = await self._evaluate(client, "greedy-before", greedy=True)
            steps = f"{self._train_steps} train steps, at most " if self._train_steps else ""
            console.print(f"the loop runs for {steps}{self._seconds:.0f} s", highlight=False)
            started = time.monotonic()
            await publish(client, self._suite.train, purpose=Purpose.TRAIN, label="train")
            progress = Progress(client=client, console=console)
            await until_ended(client, self._seconds * 2 + 120, progress.tick)
            run_s = time.monotonic() - started
            await progress.end()
            after = await self._evaluate(client, "after", greedy=False)
            greedy_after = await self._evaluate(client, "greedy-after", greedy=True)
            run = await outcome(client)
            found = await self._audit(client)
            return Results(
                before=before,
                greedy_before=greedy_before,
                after=after,
                greedy_after=greedy_after,
                run=run,
                run_s=run_s,
                audit=found,
            )

    async def _audit(self, client: Client) -> Report:
        home = Home.at(self._directory)
        status = read_status(home.layout)
        return await audit(
            client.engine,
            client.run,
            home.policies,
            client.ledger,
            alive=None if status is None else status.ready(),
            sandbox_root=default_root(),
            workers=home.workers,
        )

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
            rollouts=1 if greedy else self._rollouts,
            greedy=greedy,
            timeout_s=300,
            tick=tick,
        )
        if self._console.is_terminal:
            self._console.print("\r\x1b[2K", end="")
        self._console.print(
            f"held-out success {label}: {percent(found.all)} in {found.seconds:.0f} s, version {found.version}",
            highlight=False,
            soft_wrap=True,
        )
        return found
