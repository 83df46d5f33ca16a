"""Where the time of a run goes: `ops/bench loop [DIRECTORY] [--json]`, of the demo's last run unless a run's directory is named.

Nothing is run again: all of it is in the data pool (`transitions`, `attempts.spent`, `steps`, `tool_calls`, `verdicts`, `batches`,
`train_steps.metrics`) and, for weight syncs, in the gateway's log. What is looked at is training: from the first dispatch to the last commit.

Each place's seconds are added up without a rest (`ops.lab.benchmarks.utilisation`); the bottleneck is the place that is at work most. Below that
is how long tasks, rollouts, groups and batches waited in each queue.
"""

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from ops.lab.benchmarks.rig import own_process
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_least,
    at_most,
    show,
)
from ops.lab.benchmarks.utilisation import (
    GIVEN_UP,
    ROLLOUT,
    Lease,
    Place,
    Wait,
    Window,
    rollout_slots,
)
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import BatchState, GroupState, RolloutState, SlotPhase
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.runtime.log import configure
from orchestrator.settings.config import FILE, Config, load

DEMO = Path("var/demo")
START_S = 90.0
ACCOUNTED = 0.9  # of a place's seconds at work must have a name
TWICE = 0.01  # of a place's seconds may be counted twice: its clocks are two processes'
TRAINER = (
    "claim", "read", "anchor", "tree", "forward", "loss", "backward", "optimizer", "save", "commit", "prune",
)  # fmt: skip
AFTER = ("claim", "prune")  # not between the closing of a batch and its commit

WINDOW = """
SELECT extract(epoch FROM (SELECT min(dispatched) FROM groups WHERE run_id = :run AND purpose = 'train'))::float8 AS start,
       extract(epoch FROM max(committed))::float8 AS end
FROM batches WHERE run_id = :run AND state = 'committed'
"""
LEASES = """
WITH changed AS (
  SELECT entity_id AS rollout_id, epoch, to_state, at, lead(at) OVER same AS until, lead(to_state) OVER same AS next
  FROM transitions WHERE run_id = :run AND kind = 'rollout' WINDOW same AS (PARTITION BY entity_id ORDER BY transition_id)
)
SELECT c.to_state, c.next, g.purpose = 'train' AS train, extract(epoch FROM c.at)::float8 AS start, extract(epoch FROM c.until)::float8 AS until,
       a.spent, s.generation, s.queue, s.gap, s.tokens, s.steps, t.tools, o.generated, o.waited
FROM changed c JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id)
LEFT JOIN attempts a ON c.to_state = 'running' AND c.next = 'reported' AND a.rollout_id = c.rollout_id AND a.epoch = c.epoch
LEFT JOIN LATERAL (SELECT sum(t_gen)::float8 AS generation, sum(t_queue)::float8 AS queue, sum(t_gap)::float8 AS gap, count(*) AS steps,
                          sum(length(action) / 4) AS tokens
                   FROM steps WHERE run_id = :run AND rollout_id = a.rollout_id AND attempt = a.attempt AND epoch = a.epoch) s ON true
LEFT JOIN LATERAL (SELECT sum(upper(one) - lower(one))::float8 AS tools
                   FROM (SELECT unnest(range_agg(numrange(start_s::numeric, end_s::numeric))) AS one FROM tool_calls
                         WHERE run_id = :run AND rollout_id = a.rollout_id AND attempt = a.attempt AND end_s > start_s) x) t ON true
LEFT JOIN LATERAL (SELECT (SELECT sum(extract(epoch FROM upper(one) - lower(one)))::float8 FROM unnest(made) one) AS generated,
                          (SELECT sum(extract(epoch FROM upper(one) - lower(one)))::float8 FROM unnest(flown - made) one) AS waited
                   FROM (SELECT range_agg(tstzrange(ready - t_gen * interval '1 s', ready)) AS made,
                                range_agg(tstzrange(ready - (t_gen + t_queue) * interval '1 s', ready)) AS flown
                         FROM (SELECT t_gen, t_queue, coalesce(ended, at) AS ready FROM steps
                               WHERE run_id = :run AND rollout_id = a.rollout_id AND attempt = a.attempt AND epoch = a.epoch) y) x) o ON true
WHERE c.until IS NOT NULL AND c.to_state IN ('queued', 'running', 'reported', 'finished')
"""
GROUPS = """
SELECT to_state, next, extract(epoch FROM at)::float8 AS start, extract(epoch FROM until)::float8 AS until
FROM (SELECT entity_id, to_state, at, lead(at) OVER same AS until, lead(to_state) OVER same AS next
      FROM transitions WHERE run_id = :run AND kind = 'group' WINDOW same AS (PARTITION BY entity_id ORDER BY transition_id)) c
JOIN groups g ON g.group_id = c.entity_id WHERE g.purpose = 'train' AND until IS NOT NULL
"""
RUNNERS = "SELECT count(DISTINCT runner) FROM attempts WHERE run_id = :run"
SERVERS = """
WITH whole AS (SELECT tstzrange(to_timestamp(:start), to_timestamp(:end)) AS of)
SELECT (SELECT sum(extract(epoch FROM upper(one) - lower(one)))::float8 FROM unnest(range_agg(made * whole.of)) one) AS busy,
       sum(extract(epoch FROM upper(made * whole.of) - lower(made * whole.of)))::float8 AS generated
FROM whole, LATERAL (SELECT tstzrange(coalesce(ended, at) - t_gen * interval '1 s', coalesce(ended, at)) AS made
                     FROM steps WHERE run_id = :run AND t_gen > 0) s
"""
VERDICTS = """
SELECT extract(epoch FROM at)::float8 AS at, verify_s FROM verdicts WHERE run_id = :run AND verify_s IS NOT NULL
"""
BATCHES = """
SELECT b.state, extract(epoch FROM opened)::float8 AS opened, extract(epoch FROM closed)::float8 AS closed,
       extract(epoch FROM coalesce(committed, t.at))::float8 AS over
FROM batches b LEFT JOIN LATERAL (SELECT max(at) AS at FROM transitions t WHERE t.kind = 'batch' AND t.entity_id = b.batch_id
                                  AND t.to_state = 'voided' AND t.from_state = 'closed') t ON true
WHERE b.run_id = :run AND closed IS NOT NULL
"""
PHASES = """
SELECT e.key, sum(e.value::float) FROM train_steps t JOIN batches b USING (batch_id), jsonb_each_text(t.metrics->'seconds') e
WHERE t.run_id = :run AND b.state = 'committed' GROUP BY e.key
"""

WAITS = {
    (GroupState.ACCEPTED, GroupState.DISPATCHED): "task: for its place in the queue",
    (RolloutState.QUEUED, RolloutState.RUNNING): "rollout: for a slot",
    (RolloutState.RUNNING, RolloutState.REPORTED): "result: to the data pool",
    (RolloutState.REPORTED, RolloutState.FINISHED): "its last steps: to the data pool",
    (RolloutState.FINISHED, RolloutState.VERIFYING): "rollout: for a verification slot",
    (GroupState.READY, GroupState.TAKEN): "group: for its batch",
    ("opened", "closed"): "batch: to be full",
    (GroupState.TAKEN, GroupState.TRAINED): "group: in its batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One run, in seconds. `at_once`: mean number of concurrent completions; `twice`: slot seconds that were counted twice."""

    window: Window
    places: Sequence[Place]
    waits: Sequence[Wait]
    at_once: float
    twice: float
    attempts: int
    steps: int
    tokens: int
    batches: int
    syncs: Sequence[float]

    @property
    def bottleneck(self) -> str:
        """The busiest place, and its largest part."""
        place = max(self.places, key=lambda place: place.utilisation)
        return f"{place.name}: {max(place.parts, key=place.parts.__getitem__)}"

    def place(self, name: str) -> Place:
        return next(place for place in self.places if place.name == name)


async def read(connection: AsyncConnection, run_id: int, config: Config, syncs: Sequence[float]) -> Loop:
    """Measure the run. Raises ConfigurationError if no batch is committed yet."""
    run = {"run": run_id}
    bounds = (await connection.execute(text(WINDOW), run)).one()
    if not bounds.end or not bounds.start:
        raise ConfigurationError("no batch of this run is committed yet: let it train first")
    window = Window(float(bounds.start), float(bounds.end))
    waits = _Waits(window)
    rows = (await connection.execute(text(LEASES), run)).all()
    leases, queued = _leases(rows, waits)
    for row in await connection.execute(text(GROUPS), run):
        waits.add(row.to_state, row.next, row.start, row.until)
    batches = (await connection.execute(text(BATCHES), run)).all()
    for batch in batches:
        waits.add("opened", "closed", batch.opened, batch.closed)
    runners = max(1, int(await connection.scalar(text(RUNNERS), run) or 0))
    slots = rollout_slots(leases, queued, runners * config.rollout.slots, window)
    seconds = {phase: float(value) for phase, value in await connection.execute(text(PHASES), run)}
    servers = (
        await connection.execute(text(SERVERS), run | {"start": window.start, "end": window.end})
    ).one()
    verdicts = (await connection.execute(text(VERDICTS), run)).all()
    verified = sum(window.overlap(row.at - row.verify_s, row.at) for row in verdicts)
    verify_slots = runners * config.rollout.verify_slots
    started = [row for row in rows if row.train and row.to_state == RolloutState.RUNNING]
    return Loop(
        window=window,
        places=[
            slots.place,
            _resting("verification slots", verify_slots, window, {"verification": verified}),
            _resting("rollout servers", 1, window, {"a completion is under way": float(servers.busy or 0)}),
            _trainer(window, batches, seconds),
        ],
        waits=waits.named(),
        at_once=float(servers.generated or 0) / window.seconds,
        twice=slots.twice,
        attempts=len(started),
        steps=sum(row.steps or 0 for row in started),
        tokens=sum(int(row.tokens or 0) for row in started),
        batches=sum(batch.state == BatchState.COMMITTED for batch in batches),
        syncs=syncs,
    )


class _Waits:
    """Seconds between two states, of each change that ended within the window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def add(self, before: str, after: str, start: float, until: float) -> None:
        if until <= self._window.end:
            self._seconds.setdefault((before, after), []).append(max(0.0, until - start))

    def named(self) -> list[Wait]:
        return [
            Wait.of(name, self._seconds[change]) for change, name in WAITS.items() if change in self._seconds
        ]


def _leases(rows: Iterable[Any], waits: _Waits) -> tuple[list[Lease], list[tuple[float, float]]]:
    """The leases, and the spans in which a rollout was queued. The waits of training rollouts are added to `waits`."""
    leases, queued = [], []
    for row in rows:
        start = row.start
        if row.to_state == RolloutState.QUEUED:
            queued.append((row.start, row.until))
        elif row.to_state == RolloutState.RUNNING:
            lease = Lease(
                start=row.start,
                until=row.until,
                train=row.train,
                spent=row.spent or {},
                generation=float(row.generation or 0),
                queue=float(row.queue or 0),
                gap=float(row.gap or 0),
                tools=float(row.tools or 0),
                generated=row.generated,
                waited=row.waited or 0.0,
            )
            leases.append(lease)
            start = lease.end
        if row.train:
            waits.add(row.to_state, row.next, start, row.until)
    return leases, queued


def _resting(name: str, slots: int, window: Window, parts: dict[str, float]) -> Place:
    """A place whose remaining time is idle."""
    idle = slots * window.seconds - sum(parts.values())
    return Place(name=name, slots=slots, seconds=window.seconds, parts=parts, rests={"idle": idle})


def _trainer(window: Window, batches: Sequence[Any], seconds: Mapping[str, float]) -> Place:
    """`batches`: when each was closed, and when it was committed or voided."""
    inside = sum(batch.over - batch.closed for batch in batches if batch.state == BatchState.COMMITTED)
    undone = sum(
        window.overlap(batch.closed, batch.over)
        for batch in batches
        if batch.state == BatchState.VOIDED and batch.over is not None
    )
    parts = {phase: seconds[phase] for phase in TRAINER if phase in seconds}
    gaps = inside - sum(elapsed for phase, elapsed in parts.items() if phase not in AFTER)
    parts["batches that were undone"] = undone
    parts["between its phases"] = max(0.0, gaps)
    waiting = window.seconds - sum(parts.values())
    return Place(
        name="trainer",
        slots=1,
        seconds=window.seconds,
        parts=parts,
        rests={"waiting for ready groups": waiting},
    )


def synced(log: Path) -> list[float]:
    """Seconds that each weight sync kept calls waiting, from a gateway's log."""
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if '"sync.done"' in line:
            found.append(float(json.loads(line)["held_s"]))
    return found


def newest(root: Path) -> Path:
    """The directory of the newest run below `root`. Raises ConfigurationError if there is none."""
    runs = sorted(root.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime)
    if not runs:
        raise ConfigurationError(f"{root} holds no run: run ./ops/demo first, or name a run's directory")
    return runs[-1].parent


def bars_of(found: Loop) -> list[BenchmarkTarget]:
    """Figures that show whether the account is complete."""
    bars = []
    for name, unnamed in (
        ("rollout slots", (ROLLOUT[SlotPhase.OTHER], GIVEN_UP)),
        ("trainer", ("between its phases",)),
    ):
        place = found.place(name)
        lost = sum(place.parts.get(part, 0.0) for part in unnamed)
        bars.append(
            at_least(
                f"{name}: time with a name", 1 - lost / place.busy if place.busy else 1.0, "share", ACCOUNTED
            )
        )
    twice = found.twice - sum(min(0.0, rest) for place in found.places for rest in place.rests.values())
    bars.append(
        at_most("time counted twice", twice / max(place.whole for place in found.places), "share", TWICE)
    )
    return bars


def tell(found: Loop, table: Report) -> None:
    """Print the table."""
    seconds = found.window.seconds

    def share(part: float, whole: float) -> str:
        return f"{part:8.1f} s   {100 * part / whole if whole else 0:5.1f} %"

    table.add_row(
        "training",
        f"{seconds:8.1f} s",
        f"{found.attempts} attempts, {found.steps} steps, {found.batches} batches",
    )
    table.add_row(
        "tokens generated",
        f"{found.tokens / seconds:8.1f} tokens/s",
        f"{found.tokens} tokens that train or might",
    )
    for place in found.places:
        name = place.name if place.slots == 1 else f"{place.slots} {place.name}"
        table.add_row(
            f"{name} at work",
            share(place.busy, place.whole),
            "of their time" if name.endswith("s") else "of its time",
        )
        for part, elapsed in (*place.parts.items(), *place.rests.items()):
            table.add_row(f"  {part}", share(elapsed, place.whole), "")
    table.add_row("completions under way at once", f"{found.at_once:8.2f}", "on average")
    table.add_row(
        "weight syncs", share(sum(found.syncs), seconds), f"{len(found.syncs)}, calls are held during them"
    )
    for wait in found.waits:
        table.add_row(
            wait.name,
            f"{wait.mean:8.2f} s",
            f"mean of {wait.count}; p50 {wait.p50:.2f} s, p95 {wait.p95:.2f} s",
        )
    used = ", ".join(f"{place.name} {100 * place.utilisation:.0f} %" for place in found.places)
    table.add_row("most at work", used, "")
    table.add_row("bottleneck", found.bottleneck, "")


@contextmanager
def serving(directory: Path) -> Iterator[None]:
    """A context in which the run's database answers: its stack is up, or is started for the context."""
    home = Home.at(directory)
    if load(home.file, home.overrides).services.database_url or ProcessRole.POSTGRES in _ready(home):
        yield
        return
    command = [
        sys.executable,
        "-m",
        "orchestrator.cli",
        "up",
        "-c",
        str(directory),
        "--only",
        ProcessRole.ORCHESTRATOR,
    ]
    with own_process(command, directory / "bench.log") as stack:
        deadline = time.monotonic() + START_S
        while ProcessRole.ORCHESTRATOR not in _ready(home):
            if stack.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"the run's services do not start: see {directory / 'bench.log'}")
            time.sleep(0.1)
        yield


def _ready(home: Home) -> Collection[str]:
    """The ready processes of the run's stack. The status file of a killed stack does not count."""
    found = read_status(home.layout)
    return found.ready() if found is not None and found.supervisor.alive else ()


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
    configure("bench", level=LogLevel.ERROR)
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
        used = {place.name: place.utilisation for place in found.places}
        figures = {
            **asdict(found),
            "seconds": found.window.seconds,
            "utilisation": used,
            "bottleneck": found.bottleneck,
        }
        print(json.dumps({"bars": [asdict(bar) for bar in bars], "figures": figures}))


if __name__ == "__main__":
    main()
