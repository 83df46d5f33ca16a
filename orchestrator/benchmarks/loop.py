"""Where the time of a run goes: `ops/bench loop [DIRECTORY] [--json]`, of the demo's last run unless a run's directory is named.

Nothing is run again: all of it is in the data pool (`attempts`, `steps`, `tool_calls`, `verdicts`, `batches`, `train_steps.metrics`) and, for
weight syncs, in the gateway's log. What is looked at is training alone: groups that train, from the first dispatch to the last commit.

A place is one thing that can be at work: a rollout slot, a verification slot, the trainer. Its utilisation is the seconds at work of its
seconds in the run. The bottleneck is the place that is at work most.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.benchmarks.bars import Bar, Report, at_least, show
from orchestrator.benchmarks.rig import own_process
from orchestrator.config import FILE, Config
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.embedded.supervisor import read_status
from orchestrator.home import Home
from orchestrator.log import configure
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run

DEMO = Path("var/demo")
START_S = 90.0
ACCOUNTED = 0.9  # of a place's seconds at work must have a name

WINDOW = """
SELECT extract(epoch FROM max(b.committed) - (SELECT min(dispatched) FROM groups WHERE run_id = :run AND purpose = 'train'))
FROM batches b WHERE b.run_id = :run AND b.state = 'committed'
"""
ATTEMPTS = """
SELECT count(*) AS attempts, coalesce(sum(extract(epoch FROM a.ended - a.started)), 0) AS held, coalesce(sum(a.agent_s), 0) AS agent,
       coalesce(sum(extract(epoch FROM a.started - g.dispatched)) FILTER (WHERE a.attempt = 1), 0) AS waited
FROM attempts a JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id)
WHERE a.run_id = :run AND g.purpose = 'train' AND a.ended IS NOT NULL
"""
STEPS = """
SELECT count(*) AS steps, coalesce(sum(s.t_gen), 0) AS generation, coalesce(sum(s.t_queue), 0) AS queue, coalesce(sum(s.t_gap), 0) AS gap,
       coalesce(sum(length(s.action) / 4), 0) AS tokens
FROM steps s JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id) WHERE s.run_id = :run AND g.purpose = 'train'
"""
TOOLS = """
SELECT coalesce(sum(t.end_s - t.start_s), 0) FROM tool_calls t JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id)
WHERE t.run_id = :run AND g.purpose = 'train'
"""
VERDICTS = """
SELECT coalesce(sum(v.verify_s), 0) FROM verdicts v JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id)
WHERE v.run_id = :run AND g.purpose = 'train'
"""
BATCHES = """
SELECT count(*) AS batches, sum(extract(epoch FROM committed - closed)) AS busy
FROM batches WHERE run_id = :run AND state = 'committed'
"""
PHASES = """
SELECT e.key, sum(e.value::float) FROM train_steps t JOIN batches b USING (batch_id), jsonb_each_text(t.metrics->'seconds') e
WHERE t.run_id = :run AND b.state = 'committed' GROUP BY e.key
"""


@dataclass(frozen=True, slots=True)
class Loop:
    """Seconds of one run. `rollouts`, `trainer`: by what they were spent on, over all slots; `held`, `verified`, `busy`: at work in all."""

    seconds: float
    slots: int
    verify_slots: int
    held: float
    verified: float
    busy: float
    rollouts: Mapping[str, float]
    trainer: Mapping[str, float]
    attempts: int
    steps: int
    tokens: int
    batches: int
    syncs: Sequence[float]

    @property
    def utilisation(self) -> dict[str, float]:
        """Share of the run that each place was at work."""
        return {
            "rollout slots": self.held / (self.slots * self.seconds),
            "verification slots": self.verified / (self.verify_slots * self.seconds),
            "trainer": self.busy / self.seconds,
        }

    @property
    def bottleneck(self) -> str:
        """The place that is at work most, and what it spends most of that on."""
        place = max(self.utilisation, key=self.utilisation.__getitem__)
        parts = {"rollout slots": self.rollouts, "trainer": self.trainer}.get(
            place, {"verification": self.verified}
        )
        return f"{place}: {max(parts, key=parts.__getitem__)}"


async def read(connection: AsyncConnection, run_id: int, config: Config, syncs: Sequence[float]) -> Loop:
    """Raises ConfigurationError when nothing has been trained yet."""
    run = {"run": run_id}
    seconds = await connection.scalar(text(WINDOW), run)
    if not seconds:
        raise ConfigurationError("no batch of this run is committed yet: let it train first")
    attempts = (await connection.execute(text(ATTEMPTS), run)).one()
    steps = (await connection.execute(text(STEPS), run)).one()
    batches = (await connection.execute(text(BATCHES), run)).one()
    tools = float(await connection.scalar(text(TOOLS), run) or 0)
    verified = float(await connection.scalar(text(VERDICTS), run) or 0)
    phases = {name: float(value) for name, value in await connection.execute(text(PHASES), run)}
    held, busy = float(attempts.held), float(batches.busy)
    rollouts = {
        "generation": float(steps.generation),
        "waiting at the gateway": float(steps.queue),
        "tools": tools,
        "agent between its calls": max(0.0, float(steps.gap) - tools),
    }
    rollouts["sandbox, session and result"] = max(0.0, held - sum(rollouts.values()))
    order = ("read", "anchor", "tree", "forward", "backward", "optimizer", "loss", "save", "commit")
    trainer = {name: phases[name] for name in order if name in phases}
    trainer["between its phases"] = max(0.0, busy - sum(trainer.values()))
    return Loop(
        float(seconds), config.rollout.slots, config.rollout.verify_slots, held, verified, busy, rollouts, trainer,
        attempts.attempts, steps.steps, int(steps.tokens), batches.batches, syncs,
    )  # fmt: skip


def synced(log: Path) -> list[float]:
    """Seconds that each weight sync kept calls waiting, from a gateway's log."""
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if '"sync.done"' in line:
            found.append(float(json.loads(line)["held_s"]))
    return found


def newest(root: Path) -> Path:
    """The directory of the last run below `root`. Raises ConfigurationError when there is none."""
    runs = sorted(root.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime)
    if not runs:
        raise ConfigurationError(f"there is no run in {root}: do ./ops/demo first, or name a run's directory")
    return runs[-1].parent


def bars_of(found: Loop) -> list[Bar]:
    """Figures that say whether the account is whole."""
    unnamed = found.rollouts["sandbox, session and result"] / found.held if found.held else 0.0
    rest = found.trainer["between its phases"] / found.busy if found.busy else 0.0
    return [
        at_least("rollout slots' time with a name", 1 - unnamed, "share", 0.5),
        at_least("trainer's time with a name", 1 - rest, "share", ACCOUNTED),
    ]


def tell(found: Loop, table: Report) -> None:
    """The table."""
    used = found.utilisation

    def share(seconds: float, whole: float) -> str:
        return f"{seconds:8.1f} s   {100 * seconds / whole if whole else 0:5.1f} %"

    table.add_row(
        "training",
        f"{found.seconds:8.1f} s",
        f"{found.attempts} attempts, {found.steps} steps, {found.batches} batches",
    )
    table.add_row(
        "tokens generated",
        f"{found.tokens / found.seconds:8.1f} tokens/s",
        f"{found.tokens} tokens that train or might",
    )
    whole = found.slots * found.seconds
    table.add_row(f"{found.slots} rollout slots at work", share(found.held, whole), "of their time")
    for name, seconds in found.rollouts.items():
        table.add_row(f"  {name}", share(seconds, whole), "")
    table.add_row("  idle", share(whole - found.held, whole), "")
    table.add_row(
        f"{found.verify_slots} verification slots at work",
        share(found.verified, found.verify_slots * found.seconds),
        "of their time",
    )
    table.add_row("trainer at work", share(found.busy, found.seconds), "of its time")
    for name, seconds in found.trainer.items():
        table.add_row(f"  {name}", share(seconds, found.seconds), "")
    table.add_row("  waiting for a batch", share(found.seconds - found.busy, found.seconds), "")
    table.add_row(
        "weight syncs",
        share(sum(found.syncs), found.seconds),
        f"{len(found.syncs)}, calls are held meanwhile",
    )
    table.add_row(
        "most at work",
        ", ".join(f"{name} {100 * value:.0f} %" for name, value in used.items()),
        f"bottleneck: {found.bottleneck}",
    )


@contextmanager
def serving(directory: Path) -> Iterator[None]:
    """The run's database answers: its stack is up, or it is started for as long as this takes."""
    home = Home.at(directory)
    if home.config().services.database_url or (
        (found := read_status(home.layout)) is not None and "postgres" in found.ready()
    ):
        yield
        return
    up = [sys.executable, "-m", "orchestrator.cli", "up", "-c", str(directory), "--only", "orchestrator"]
    with own_process(up, directory / "bench.log") as stack:
        deadline = time.monotonic() + START_S
        while (found := read_status(home.layout)) is None or "orchestrator" not in found.ready():
            if stack.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"the run's services do not start: see {directory / 'bench.log'}")
            time.sleep(0.1)
        yield


async def measure(directory: Path) -> Loop:
    home = Home.at(directory)
    config = home.connected()
    async with (
        open_engine(config.services.database_url, Role.READER, size=1) as engine,
        engine.connect() as connection,
    ):
        run = await get_run(connection, config.run.name)
        log = home.layout.log("gateway")
        return await read(
            connection, run.run_id, Config.from_json(run.config), await anyio.to_thread.run_sync(synced, log)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="ops/bench loop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "directory", nargs="?", type=Path, help="a run's directory (default: the demo's last run)"
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = parser.parse_args()
    configure("bench", level="error")
    try:
        directory = options.directory or newest(DEMO)
        with serving(directory):
            found = anyio.run(measure, directory)
    except (PenstockError, ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    table = Report()
    tell(found, table)
    bars = bars_of(found)
    show(bars, table, as_json=False)
    if options.json:
        figures = {**asdict(found), "utilisation": found.utilisation, "bottleneck": found.bottleneck}
        print(json.dumps({"bars": [asdict(bar) for bar in bars], "figures": figures}))


if __name__ == "__main__":
    main()
