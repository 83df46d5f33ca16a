"""How to reach each boundary of a running stack. Most are reached all the time; the others are provoked."""

import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import nats
from sqlalchemy import text

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.link import urls_of
from orchestrator.contracts.states import Purpose, RolloutState
from orchestrator.pool.engine import open_engine
from orchestrator.runtime.failpoints import BOUNDARIES, BoundaryKind
from tests.e2e.stack_rig import until
from tests.failpoints.conftest import ACTIONS
from tests.failpoints.world import World

Provoke = Callable[[World], Awaitable[None]]

TOGETHER = 8
DELAY_S = 0.3
LONG_S = 600.0  # for one more rollout, while other cases disturb other processes
LARGE_BYTES = 5_000_000  # six blobs, which differ in each task
AT_WORK_WITH = "select count(*) from groups where run_id = :run and not done and scaffold like :scaffold"
SLOW = """select count(*) from rollouts r join groups g using (group_id)
 where g.run_id = :run and g.submission like 'slow:%' and r.state = any(:states)"""
SLOW_S = 5.0
REFUSING = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused' USING ERRCODE = '22023'; END $$",
    "CREATE TRIGGER refuse BEFORE INSERT ON submissions FOR EACH ROW WHEN (NEW.submission LIKE 'refused:%') EXECUTE FUNCTION refuse()",
)
ENDS = {RolloutState.VERIFIED, RolloutState.LOST}
FILES = {
    "task.toml": '[metadata]\ndomain = "general"\n',
    "instruction.md": "Say something.\n",
    "tests/test.sh": "mkdir -p /logs/verifier; echo 0.5 > /logs/verifier/reward.txt\n",
}
AT_THE_START = {
    "trainer.first",
    "trainer.quarantine",
    "file.sync",
    "file.rename",
    "log.rename",
    "cluster.rename",
    "gateway.refused",
}
"""Not reached in a running stack: test_starts.py."""
ELSEWHERE = {
    "prune.detach",
    "prune.drop",
    "export.sync",
    "export.rename",
    "login.commit",
    "schema.commit",
}
"""Of a run that has ended, or without a run: tests/integration/pool/test_prune.py, test_resumes.py, test_commits_of_a_database.py."""


SHARED = {"lease.taken", "lease.renewed", "worker.read", "heartbeat.commit", "fetch", "journal.sync"}
"""Several processes get there all the time: each of them dies there. At another shared boundary, the first process to arrive dies."""


DEAR = {"trainer"}
"""It takes seconds of CPU time to start, and is killed on one side of its boundaries here. test_kills.py kills it on both sides of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Boundaries that are armed together: the specifications that arm them (`points`), and the processes that no other
    case may disturb at the same time."""

    names: tuple[str, ...]
    points: dict[str, list[str]]
    busy: frozenset[str]
    provoke: Provoke | None

    @property
    def name(self) -> str:
        return " ".join(self.names)

    @property
    def wanted(self) -> list[str]:
        return [f"{point} {action}" for point, actions in self.points.items() for action in actions]


def cases(names: list[str] | None, actions: list[str] | None) -> list[Case]:
    """All boundaries of a running stack, or the chosen ones. A case joins boundaries that are provoked alike, and up to
    `TOGETHER` unprovoked boundaries of the same processes."""
    known = [name for name in BOUNDARIES if name not in AT_THE_START | ELSEWHERE]
    chosen = [name for name in known if not names or name in names]
    provoked: dict[Provoke, list[str]] = {}
    others: dict[frozenset[str], list[str]] = {}
    for name in chosen:
        if name in PROVOKED:
            provoked.setdefault(PROVOKED[name], []).append(name)
        else:
            others.setdefault(_busy(name), []).append(name)
    found = [_case(alike, actions, provoke) for provoke, alike in provoked.items()]
    for alike in others.values():
        parts = -(-len(alike) // TOGETHER)
        found += [_case(alike[part::parts], actions, None) for part in range(parts)]
    return found


def _case(names: list[str], actions: list[str] | None, provoke: Provoke | None) -> Case:
    points: dict[str, list[str]] = {}
    for name in names:
        points |= points_of(name, actions or ACTIONS) | _of_each(name, actions or ACTIONS)
    return Case(
        names=tuple(names), points=points, busy=frozenset[str]().union(*map(_busy, names)), provoke=provoke
    )


def points_of(name: str, actions: list[str] | tuple[str, ...]) -> dict[str, list[str]]:
    """In this order the act is repeated until the next point is reached."""
    written = {"raise": "raise", "delay": f"delay {DELAY_S}", "exit": "exit"}
    single = [written[action] for action in ACTIONS if action in actions and action in written]
    sides = {f"{name}.before": single, f"{name}.after": single}
    if DEAR.issuperset(BOUNDARIES[name].who):
        sides[f"{name}.before"] = [action for action in single if action != "exit"]
    points = {point: wanted for point, wanted in sides.items() if wanted}
    return points | ({name: ["duplicate"]} if "duplicate" in actions else {})


def _of_each(name: str, actions: list[str] | tuple[str, ...]) -> dict[str, list[str]]:
    if name not in SHARED or "exit" not in actions:
        return {}
    return {f"{name}.before@{process}": ["exit"] for process in BOUNDARIES[name].who}


def _busy(name: str) -> frozenset[str]:
    return frozenset(BOUNDARIES[name].who) | DISTURBED.get(name, frozenset())


async def _restart(world: World, *, process: str, how: signal.Signals = signal.SIGKILL) -> None:
    await world.end(process, how)


async def _stop_a_verifier_that_holds_a_lease(world: World) -> None:
    """Its tests take seconds: it holds the lease when the signal comes."""

    async def at_work() -> bool:
        return bool(await world.seen.value(SLOW, states=[RolloutState.VERIFYING]))

    if not await world.seen.value(SLOW, states=[state for state in RolloutState if state not in ENDS]):
        await world.submit(1, purpose=Purpose.RECORD, test_s=SLOW_S)
    await until(at_work, "a slow task is verified", LONG_S)
    await world.end("verifier", signal.SIGTERM)


async def _freeze_the_runner(world: World) -> None:
    await world.freeze_the_runner(LONG_S)


async def _scaffold(world: World, *, name: str, count: int) -> None:
    """Unless some of its groups are at work."""
    if not await world.seen.value(AT_WORK_WITH, scaffold=f"%{name}"):
        await world.submit(count, purpose=Purpose.RECORD, scaffold=name)


async def _a_late_step(world: World) -> None:
    world.arm({"publish.steps.before": ["delay 1.5"]})


async def _send(world: World, subject: str, schema: str, body: bytes) -> None:
    world.numbers["message"] += 1
    await world.seen.bus.publish(
        Outgoing(subject=subject, msg_id=f"odd:{world.numbers['message']}", schema=schema, body=body)
    )


async def _junk(world: World) -> None:
    await _send(world, subjects.steps(world.seen.run, "1"), "StepRecorded/1", b"\xff\xfe")


async def _a_full_buffer(world: World) -> None:
    """While a batch of steps is not committed, other steps, and a message that is not a step, arrive behind it; then the consumer stops."""
    point, action = "steps.commit.before", "delay 1.0"
    before = world.hits()[f"{point} {action}"]
    world.arm({point: [action]})
    await until(lambda: world.hits()[f"{point} {action}"] > before, "steps wait to be stored", LONG_S)
    for _ in range(8):  # arrivals of one stop
        await _junk(world)
    async with await nats.connect(urls_of(world.stack.home.connected().services.nats_url)) as client:
        stream = client.jetstream()
        newest = (await stream.stream_info("STEPS")).state.last_seq

        async def delivered() -> bool:
            found = await stream.consumer_info("STEPS", subjects.consume_steps(world.seen.run).durable or "")
            return found.delivered is not None and found.delivered.stream_seq >= newest

        await until(delivered, "they have arrived behind it", LONG_S)
    await world.end("orchestrator", signal.SIGTERM)


async def _bad_work(world: World) -> None:
    """A runner refuses it, and the orchestrator keeps it."""
    await _send(world, subjects.work_rollout(world.seen.run), "RolloutAssigned/1", b"\xff\xfe")


async def _what_only_postgres_refuses(world: World) -> None:
    """A valid task that the database refuses by a trigger: the checks of messages leave nothing else that it would refuse."""
    if world.numbers["refused"] == 0:
        async with open_engine(world.stack.home.connected().services.database_url, size=1) as engine:
            async with engine.begin() as connection:
                for statement in REFUSING:
                    await connection.execute(text(statement))
    world.numbers["refused"] += 1
    body = {
        "submission": f"refused:{world.numbers['refused']}",
        "purpose": "record",
        "task": {"files": FILES},
    }
    await _send(world, f"tasks.{world.seen.run}.general", "TaskSubmitted/1", json.dumps(body).encode())


async def _a_task_by_command(world: World) -> None:
    await _publish(world, FILES)


async def _a_large_task_by_command(world: World) -> None:
    """Its blobs are new: no cache has them."""
    await _publish(world, FILES | {"environment/files/data": os.urandom(LARGE_BYTES)})


async def _publish(world: World, files: Mapping[str, str | bytes]) -> None:
    world.numbers["command"] += 1
    directory = world.stack.directory / "suite" / "task"
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content.encode() if isinstance(content, str) else content)
    label = f"n{world.numbers['command']}"
    await world.command("tasks", "publish", str(directory), "--label", label, "--purpose", "record")


async def _a_command(world: World) -> None:
    await world.command("dead", "list")


RESTARTED: dict[str, Provoke] = {
    process: partial(_restart, process=process) for process in ("orchestrator", "gateway", "verifier")
}
BROKEN: Provoke = partial(_scaffold, name="Broken", count=3)
PROVOKED: dict[str, Provoke] = {
    "run.create": RESTARTED["orchestrator"],
    "rebuild.commit": RESTARTED["orchestrator"],
    "breaker.commit": BROKEN,
    "worker.count": BROKEN,
    "lease.lost": _freeze_the_runner,
    "steps.complete": _a_late_step,
    "nak": _a_full_buffer,
    "refused.commit": _what_only_postgres_refuses,
    "dead_letters.commit": _bad_work,
    "ack.dead": _bad_work,
    "publish.dead": _junk,
    "term": _junk,
    "person.commit": _a_command,
    "publish.tasks": _a_task_by_command,
    "publish.blobs": _a_large_task_by_command,
    "blobs.commit": _a_large_task_by_command,
    "blobs.read": _a_large_task_by_command,
    "ack.blobs": _a_large_task_by_command,
    "lease.ended": _stop_a_verifier_that_holds_a_lease,
    "server.lease.taken": RESTARTED["gateway"],
    "server.lease.ended": partial(_restart, process="gateway", how=signal.SIGTERM),
    "gateway.url": RESTARTED["gateway"],
    "server.abort": partial(_scaffold, name="Hasty", count=2),
    "journal.segment": RESTARTED["verifier"],
    "journal.named": RESTARTED["verifier"],
}
DISTURBED: dict[str, frozenset[str]] = {
    "dead_letters.commit": frozenset({"runner"}),
    "ack.dead": frozenset({"runner"}),
    "steps.complete": frozenset({"gateway"}),
}
assert set(PROVOKED) | set(DISTURBED) | AT_THE_START | ELSEWHERE <= set(BOUNDARIES)
assert all(
    BOUNDARIES[name].kind is not BoundaryKind.SERVER or "gateway" in BOUNDARIES[name].who
    for name in BOUNDARIES
)
