"""Held-out tasks on one policy version, beside training: publish, wait until every group has ended, read the result.

    async with connected(home) as bench:
        found = await bench.evaluate(tasks, Asked("heldout", version=7), tick=print)

Evaluations get no queue position and train nothing. The same suite, version and options are the same submissions, so an evaluation that was
interrupted goes on and one that is done is a no-op. A rollout server serves one version at a time: servers that are reserved
(`servers.evaluation`) serve what evaluations pin, the others the newest version alone.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import Purpose, ServerState
from orchestrator.home import Home
from orchestrator.look.evaluations import Evaluation, evaluations
from orchestrator.pool.dead import RETRY, tried
from orchestrator.pool.engine import Role, check_revision, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.pool.tables import groups, policy_versions, rollout_servers
from orchestrator.publish import publish_tasks
from orchestrator.tasks.harbor import Task

ANSWER_S = 120.0  # for the orchestrator to accept what was published, for a trainer that starts to publish its first version
SERVED_S = 30.0  # for a rollout server to come to the newest version
STUCK_S = 600.0  # without a single further group that ended
LOOK_S = 0.5
PAGE = 64  # tasks published before the next ones wait for their acceptance

Tick = Callable[[int, int], object]
"""(groups that ended, groups in all)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One evaluation. `version` None: the newest. `rollouts` per task; `greedy`: temperature 0. `scaffold` "": the run's shares."""

    suite: str
    version: int | None = None
    rollouts: int = 1
    greedy: bool = False
    scaffold: str = ""

    def submission(self, version: int, task: Task) -> str:
        """An id that says what is asked for, so that the same is never done twice."""
        how = f"{self.rollouts}{'g' if self.greedy else ''}"
        scaffold = f":{self.scaffold}" if self.scaffold else ""
        return f"eval:{self.suite}:{version}:{how}{scaffold}:{task.content_hash[:24]}"


@dataclass(frozen=True, slots=True)
class Bench:
    """A running stack as a client sees it. `reserved`: rollout servers that serve what evaluations pin."""

    run: str
    run_id: int
    bus: Bus
    engine: AsyncEngine
    reserved: int

    async def evaluate(
        self,
        tasks: Sequence[Task],
        asked: Asked,
        tick: Tick = lambda *_: None,
        resolved: Callable[[int], object] = lambda _: None,
        waits: Callable[[str], object] = lambda _: None,
    ) -> Evaluation:
        """`resolved` is told the version, `waits` what must come before there is one.

        Run every task and wait. ConfigurationError when that cannot be done exactly; PenstockError when nothing moves any more."""
        if not tasks:
            raise ConfigurationError(f"the suite {asked.suite!r} has no task")
        await self._begun(waits)
        async with self.engine.connect() as connection:
            version = await self._version(connection, asked.version)
            resolved(version)
            await self._same(connection, asked, version, tasks)
            done, total = await self._progress(connection, asked.suite, version)
        if done < total or total < len({task.content_hash for task in tasks}):
            await self._servable(version)
            await self._publish(tasks, asked, version)
            await self._wait(asked.suite, version, tick)
        async with self.engine.connect() as connection:
            (found,) = await evaluations(connection, self.run_id, suite=asked.suite, version=version)
        return found

    async def _begun(self, waits: Callable[[str], object]) -> None:
        """Return once the run has a policy version, or nobody believes any more that one comes."""
        query = select(policy_versions.c.version).where(policy_versions.c.run_id == self.run_id).limit(1)
        told = False
        with anyio.move_on_after(ANSWER_S):
            while True:
                async with self.engine.connect() as connection:
                    if await connection.scalar(query) is not None:
                        return
                if not told:
                    waits(
                        f"run {self.run!r} has no policy version yet: waiting up to {ANSWER_S:.0f} s for its trainer, which publishes the first"
                    )
                    told = True
                await anyio.sleep(LOOK_S)

    async def _version(self, connection: AsyncConnection, wanted: int | None) -> int:
        table = policy_versions.c
        newest = await connection.scalar(
            select(func.max(table.version)).where(table.run_id == self.run_id, table.superseded_by.is_(None))
        )
        if newest is None:
            raise ConfigurationError(f"run {self.run!r} has no policy version yet: is its trainer up?")
        if wanted is None:
            return int(newest)
        row = (
            await connection.execute(
                select(table.superseded_by, table.path).where(
                    table.run_id == self.run_id, table.version == wanted
                )
            )
        ).first()
        if row is None:
            raise ConfigurationError(
                f"run {self.run!r} never published policy version {wanted}; its newest is {newest}"
            )
        if row.superseded_by is not None:
            raise ConfigurationError(
                f"policy version {wanted} was undone by a rewind, version {row.superseded_by} came in its place"
            )
        if wanted != newest and not await anyio.Path(row.path).exists():
            raise ConfigurationError(
                f"the weights of policy version {wanted} are not kept any more ({Path(row.path).name} is gone): "
                "trainer.keep_checkpoints says how many are"
            )
        return wanted

    async def _same(
        self, connection: AsyncConnection, asked: Asked, version: int, tasks: Sequence[Task]
    ) -> None:
        """What lies under this suite and version must be what is asked for: other tasks or options would be mixed into one figure."""
        mine = {asked.submission(version, task) for task in tasks}
        found = await connection.scalars(
            select(groups.c.submission).where(
                groups.c.run_id == self.run_id,
                groups.c.purpose == Purpose.EVAL,
                groups.c.label == asked.suite,
                groups.c.pinned_version == version,
            )
        )
        # A person may have tried dead ones again (`penstock dead retry`).
        if others := sorted({tried(each) for each in found} - mine):
            raise ConfigurationError(
                f"suite {asked.suite!r} was evaluated on version {version} with other tasks or options ({len(others)} groups, "
                f"such as {others[0]}): name this one with --label"
            )

    async def _servable(self, version: int) -> None:
        """Return once a rollout server serves the version, or one is there that will. ConfigurationError when none can."""
        if self.reserved:
            return
        table = rollout_servers.c
        with anyio.move_on_after(SERVED_S):
            while True:
                async with self.engine.connect() as connection:
                    newest = await self._version(connection, None)
                    served = (
                        await connection.scalars(
                            select(table.version).where(
                                table.run_id == self.run_id, table.state == ServerState.READY
                            )
                        )
                    ).all()
                if version != newest:
                    raise ConfigurationError(
                        f"policy version {version} cannot be evaluated: every rollout server serves the newest version, which is "
                        f"{newest}; reserve one with servers.evaluation = 1 (and servers.embedded = 2), or evaluate the newest"
                    )
                if version in served:
                    return
                await anyio.sleep(LOOK_S)
        raise ConfigurationError(
            f"no rollout server serves policy version {version}, not within {SERVED_S:.0f} s: is the stack up? (penstock status)"
        )

    async def _publish(self, tasks: Sequence[Task], asked: Asked, version: int) -> None:
        """What was accepted before is a no-op."""
        events = [
            (
                task.settings.metadata.domain,
                TaskSubmitted(
                    task=task.to_message(),
                    submission=asked.submission(version, task),
                    purpose=Purpose.EVAL,
                    scaffold=asked.scaffold or None,
                    group_size=asked.rollouts,
                    label=asked.suite,
                    version=version,
                    sampling={"temperature": 0.0} if asked.greedy else None,
                ),
            )
            for task in tasks
        ]
        for start in range(0, len(events), PAGE):
            page = events[start : start + PAGE]
            answers = await publish_tasks(self.bus, self.run, page, timeout_s=ANSWER_S)
            for _, event in page:
                status, reason = answers.get(
                    event.submission or "", ("not answered", "is the orchestrator up?")
                )
                if status != "accepted":
                    raise PenstockError(f"the task {event.submission} was {status}: {reason}")

    async def _wait(self, suite: str, version: int, tick: Tick) -> None:
        moved, last = anyio.current_time(), -1
        while True:
            async with self.engine.connect() as connection:
                done, total = await self._progress(connection, suite, version)
            tick(done, total)
            if done == total:
                return
            if done != last:
                moved, last = anyio.current_time(), done
            elif anyio.current_time() - moved > STUCK_S:
                raise PenstockError(
                    f"only {done} of {total} groups ended, and none in the last {STUCK_S:.0f} s; `penstock status` says who holds them up. "
                    "The same command goes on"
                )
            await anyio.sleep(LOOK_S)

    async def _progress(self, connection: AsyncConnection, suite: str, version: int) -> tuple[int, int]:
        """(groups that ended, groups that were accepted), of every submission its newest try."""
        first = func.regexp_replace(groups.c.submission, RETRY, "")
        newest = (
            select(groups.c.done)
            .where(
                groups.c.run_id == self.run_id,
                groups.c.purpose == Purpose.EVAL,
                groups.c.label == suite,
                groups.c.pinned_version == version,
            )
            .order_by(first, groups.c.group_id.desc())
            .ext(distinct_on(first))
            .subquery()
        )
        row = (
            await connection.execute(
                select(
                    func.count().filter(newest.c.done).label("done"), func.count().label("total")
                ).select_from(newest)
            )
        ).one()
        return int(row.done), int(row.total)


@asynccontextmanager
async def connected(home: Home) -> AsyncIterator[Bench]:
    """A client of the stack that runs in `home`. ConfigurationError or ServiceError when there is none."""
    config = home.connected()
    async with (
        open_engine(config.services.database_url, Role.READER, size=1, name="penstock-eval") as engine,
        NatsBus.connect(config.services.nats_url, name="penstock-eval") as bus,
    ):
        async with engine.connect() as connection:
            await check_revision(connection)
            run = await get_run(connection, config.run.name)
        yield Bench(run.name, run.run_id, bus, engine, config.servers.evaluation)
