"""A run like the demo's, for some minutes: embedded services and servers, white and black boxes, a policy that trains without end.

| produces | waits for | unblocked by |
|---|---|---|
| samples | time | - |
| submissions | fewer than LOW waiting groups (chaos.load) | the dispatcher |
"""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.lab.benchmarks.soak.samples import Sample, read
from ops.lab.chaos.ledger import SUBMISSIONS, Ledger, lines
from ops.lab.chaos.load import DOMAIN, SubmittedLoad
from ops.lab.demo.phases import Client, until_ended
from ops.lab.demo.scenario import connected
from orchestrator.audit import audit
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home
from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import close_intake
from orchestrator.settings.config import FILE
from sandboxes.reap import default_root

FIRST_S = 180.0  # until the first rollout has ended
DRAIN_S = 180.0
READINGS = 150  # of a run, between MIN_S and MAX_S apart
MIN_S, MAX_S = 1.0, 10.0
EXAMPLE = Path(__file__).resolve().parents[4] / "agents" / "scaffolds" / "examples"
ENDED = "select count(*) from rollouts where run_id = :run and state in ('verified', 'lost')"
SYNCS = "select count(*) from batches where run_id = :run and state = 'committed'"
CONFIG = """\
# Written by ops/bench soak.
[run]
name = "soak"

[policy]
model = "{model}"

[queue]
batch_groups = 4
group_size = 4
max_staleness = 2
capacity = 16

[stage]
domains = {{ {domain} = 1.0 }}
max_turns = 4
max_context = 1024

[sampling]
max_new_tokens = 16

[rollout]
slots = 12
verify_slots = 4
scaffolds = {{ shell = 0.8, "{example}" = 0.2 }}
timeout_s = 60
completion_s = 60
tool_timeout_s = 60
observation_lines = 3

[sandbox]
memory_mb = 512
processes = 64
cpu_s = 60
disk_mb = 64
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """The figures that a run left for the bars. `started_s`: from the start of the stack to its first ended rollout."""

    samples: list[Sample]
    syncs: int
    violations: int
    started_s: float


def write_run(root: Path, model: Path) -> Path:
    """Make a new run directory below `root`; returns its absolute path."""
    directory = root / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    (directory / FILE).write_text(
        CONFIG.format(model=model, domain=DOMAIN, example=EXAMPLE), encoding="utf-8"
    )
    return directory.resolve()


async def soak(
    directory: Path, stack: subprocess.Popen[bytes], seconds: float, tick: Callable[[Sample], object]
) -> Soaked:
    """Load the run for `seconds` from its first ended rollout on, then drain and audit it. Raises PenstockError if it does not start or drain."""
    home = Home.at(directory)
    started = time.monotonic()
    async with connected(directory, stack) as client:
        with Ledger(directory) as ledger:
            load = SubmittedLoad(
                nats_url=home.connected().services.nats_url,
                run=client.run,
                run_id=client.run_id,
                engine=client.engine,
                ledger=ledger,
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run)
                await _first(client)
                started_s = time.monotonic() - started
                samples = await _sample(home, client.engine, client.run_id, seconds, tick)
                await load.close()
        url = home.connected().services.database_url
        async with open_engine(url, size=1, name="soak-operator") as engine, engine.begin() as connection:
            await close_intake(connection, client.run_id)

        async def nothing() -> None:
            """Shows no progress."""

        await until_ended(client, DRAIN_S, nothing)
        status = read_status(home.layout)
        report = await audit(
            client.engine,
            client.run,
            home.policies,
            lines(directory / SUBMISSIONS),
            alive=None if status is None else status.ready(),
            sandbox_root=default_root(),
            workers=home.workers,
        )
        return Soaked(
            samples=samples,
            syncs=int(await client.value(SYNCS)),
            violations=report.violations + len(load.refused),
            started_s=started_s,
        )


async def _first(client: Client) -> None:
    with anyio.move_on_after(FIRST_S):
        while not await client.value(ENDED):
            await anyio.sleep(0.2)
        return
    raise PenstockError(f"no rollout ended within {FIRST_S:g} s: see the logs of the run")


async def _sample(
    home: Home, engine: AsyncEngine, run_id: int, seconds: float, tick: Callable[[Sample], object]
) -> list[Sample]:
    interval_s = min(MAX_S, max(MIN_S, seconds / READINGS))
    samples: list[Sample] = []
    started = anyio.current_time()
    while (at := anyio.current_time() - started) <= seconds:
        status = read_status(home.layout)
        if status is None:
            raise PenstockError("the stack has ended: see up.log of the run")
        async with engine.connect() as connection:
            rollouts = int(await connection.scalar(text(ENDED), {"run": run_id}) or 0)
        values = await anyio.to_thread.run_sync(read, home, status)
        restarts = sum(process.restarts for process in status.processes)
        samples.append(Sample(at=at, rollouts=rollouts, restarts=restarts, values=values))
        tick(samples[-1])
        await anyio.sleep_until(started + len(samples) * interval_s)
    return samples
