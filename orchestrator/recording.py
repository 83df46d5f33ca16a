"""Recording demonstrations through the gateway, like any rollout: publish, wait until every one is scored.

    async with connected(home) as studio:
        recorded = await studio.record(drawn := demonstrations(4000, 0, {"shell": 1.0}), label_of(drawn), tick=print)

Sandboxes, observations, token ids and verdicts are the real ones; only the policy is replaced by each task's script. Recording the same
demonstrations again is a no-op, so an interrupted recording goes on where it stopped.
"""

import hashlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.nats import NatsBus
from orchestrator.config import FILE
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import Purpose
from orchestrator.home import Home
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.publish import publish_tasks
from orchestrator.stack import up
from orchestrator.tasks.suite.record import Demonstration

T = TypeVar("T")

PROCESSES = ("orchestrator", "gateway", "runner", "verifier")
PAGE = 64  # demonstrations published before the next ones wait for their acceptance
LOOK_S = 0.5
STUCK_S = 120.0  # without a single further scored rollout

_COUNTS = text(
    "select g.done, g.state, count(*) as n, coalesce(sum((w.performance >= 1)::int), 0) as ok"
    " from groups g join rollouts r on r.group_id = g.group_id left join latest_rewards w on w.rollout_id = r.rollout_id"
    " where g.run_id = :run and g.label = :label group by 1, 2"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Rollouts of one label. `ended` are in a terminal state, `scored` among them have a verdict, `succeeded` passed."""

    ended: int
    scored: int
    succeeded: int


@dataclass(frozen=True, slots=True)
class RecordedDemonstrations:
    """What came of a recording. `good` of them were meant to pass; `seconds` is wall clock, publishing included."""

    count: int
    good: int
    progress: Progress
    seconds: float


@dataclass(frozen=True, slots=True)
class Studio:
    """A running stack as a client sees it."""

    run: str
    run_id: int
    bus: Bus
    engine: AsyncEngine

    async def record(
        self, demonstrations: Sequence[Demonstration], label: str, tick: Callable[[Progress], object]
    ) -> RecordedDemonstrations:
        """Play every demonstration once. `tick` is called about twice a second.

        PenstockError when one is refused, or when nothing moves any more.
        """
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:

            async def publish() -> None:
                for page in _pages(demonstrations, label):
                    await self._publish(page)

            tasks.start_soon(publish)
            progress = await self._wait(label, len(demonstrations), tick)
            tasks.cancel_scope.cancel()
        good = sum(demonstration.good for demonstration in demonstrations)
        return RecordedDemonstrations(len(demonstrations), good, progress, time.monotonic() - began)

    async def _publish(self, page: Sequence[tuple[str, TaskSubmitted]]) -> None:
        answers = await publish_tasks(self.bus, self.run, page, timeout_s=STUCK_S)
        for _, event in page:
            status, reason = answers.get(event.submission or "", ("not answered", "is the orchestrator up?"))
            if status != "accepted":
                raise PenstockError(f"the demonstration {event.submission} was {status}: {reason}")

    async def _wait(self, label: str, count: int, tick: Callable[[Progress], object]) -> Progress:
        moved, last = anyio.current_time(), -1
        while True:
            progress = await self.progress(label)
            tick(progress)
            if progress.ended >= count:
                return progress
            if progress.ended != last:
                moved, last = anyio.current_time(), progress.ended
            elif anyio.current_time() - moved > STUCK_S:
                raise PenstockError(
                    f"only {progress.ended} of {count} demonstrations ended, and none in the last {STUCK_S:.0f} s; see the logs"
                )
            await anyio.sleep(LOOK_S)

    async def progress(self, label: str) -> Progress:
        """How far the rollouts of `label` are, from the data pool."""
        async with self.engine.connect() as connection:
            rows = (await connection.execute(_COUNTS, {"run": self.run_id, "label": label})).all()
        return Progress(
            ended=sum(row.n for row in rows if row.done),
            scored=sum(row.n for row in rows if row.state == "scored"),
            succeeded=sum(row.ok for row in rows if row.state == "scored"),
        )


def label_of(demonstrations: Sequence[Demonstration]) -> str:
    """A label that exactly these demonstrations have: another number, seed or share of scaffolds gives another one."""
    digest = hashlib.sha256()
    for demonstration in demonstrations:
        digest.update(f"{demonstration.task.content_hash} {demonstration.scaffold}\n".encode())
    return f"demonstrations-{digest.hexdigest()[:16]}"


def _pages(demonstrations: Sequence[Demonstration], label: str) -> Iterator[list[tuple[str, TaskSubmitted]]]:
    """(domain, event) pairs. Submission ids sort in the order of the demonstrations and change with what is played."""
    for start in range(0, len(demonstrations), PAGE):
        yield [
            (
                demonstration.task.settings.metadata.domain,
                TaskSubmitted(
                    task=demonstration.task.to_message(),
                    submission=f"{label}:{number:06d}:{demonstration.task.content_hash[:16]}",
                    purpose=Purpose.RECORD,
                    scaffold=demonstration.scaffold,
                    group_size=1,
                    label=label,
                ),
            )
            for number, demonstration in enumerate(demonstrations[start : start + PAGE], start)
        ]


@asynccontextmanager
async def connected(home: Home) -> AsyncIterator[Studio]:
    """A client of the stack that runs in `home`. ConfigurationError or ServiceError when there is none."""
    config = home.connected()
    async with (
        open_engine(config.services.database_url, Role.READER, size=1, name="penstock-record") as engine,
        NatsBus.connect(config.services.nats_url, name="penstock-record") as bus,
    ):
        async with engine.connect() as connection:
            run = await get_run(connection, config.run.name)
        yield Studio(run.name, run.run_id, bus, engine)


STACK = """\
[run]
name = "demonstrations"

[policy]
model = "{model}"

[stage]
max_context = 4096

[rollout]
slots = {slots}
verify_slots = {verify_slots}

[sandbox]
provider = "{sandbox}"
"""


async def with_own_stack(
    model: Path, work: Callable[[Home], Awaitable[T]], *, slots: int, verify_slots: int, sandbox: str
) -> T:
    """Run `work` on a stack of its own, without rollout server and trainer, in a temporary directory that is gone afterwards.

    KeyboardInterrupt when a signal stopped the stack first.
    """
    result: list[T] = []
    with tempfile.TemporaryDirectory(prefix="penstock-record-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL may run as a user of its own
        (directory / FILE).write_text(
            STACK.format(model=model.resolve(), slots=slots, verify_slots=verify_slots, sandbox=sandbox),
            encoding="utf-8",
        )
        home = Home.at(directory)
        ready = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await up(home, only=PROCESSES, started=lambda _: ready.set())
                tasks.cancel_scope.cancel()

            tasks.start_soon(serve)
            await ready.wait()
            result.append(await work(home))
            tasks.cancel_scope.cancel()
    if not result:
        raise KeyboardInterrupt
    return result[0]
