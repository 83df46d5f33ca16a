"""Held-out tasks on one policy version, in parallel with training: publish, wait until every group has ended, read the result.

    async with connected(home) as bench:
        found = await bench.evaluate(tasks, EvaluationRequest(suite="heldout", version=7), tick=print)

Evaluations get no queue position and are not trained on. The same suite, version and options give the same submissions. An interrupted
evaluation therefore continues, and a finished one is a no-op. A rollout server serves one version at a time: reserved servers
(`servers.evaluation`) serve the versions that evaluations pin, the others only the newest version.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.nats import NatsBus
from orchestrator.bus.subjects import check_submission
from orchestrator.contracts.errors import ArgumentError, ConfigurationError, PenstockError
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.numbers import INT2, INT4
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.contracts.vetting import Vetting
from orchestrator.deploy.home import Home
from orchestrator.pool.dead_letters import tried
from orchestrator.pool.engine import Role
from orchestrator.pool.opened import opened_run
from orchestrator.publish import blobs_of, publish_tasks
from orchestrator.queries.evaluation_run import (
    evaluated_submissions,
    evaluation_counts,
    has_version,
    is_training,
    newest_version,
    published_version,
    served_versions,
)
from orchestrator.queries.evaluations import (
    Evaluation,
    Unscored,
    evaluations,
    unscored,
)
from orchestrator.queries.silence import Patience
from orchestrator.settings.config import effective
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.longest_silence import longest_s

ANSWER_S = 120.0  # for the orchestrator to accept published tasks, and for a starting trainer to publish its first version
SERVED_S = 30.0  # for a rollout server to reach the newest version
POLL_INTERVAL_S = 0.5
HASH = 24  # characters of a task's hash in a submission id
PAGE = 64  # tasks published before the next ones wait for their acceptance

Tick = Callable[[int, int], object]
"""(ended groups, all groups)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """One evaluation. `version` None: the newest. `rollouts` per task; `greedy`: temperature 0. `scaffold` None: the run's shares.

    Raises ArgumentError for a value that cannot be used.
    """

    suite: str
    version: int | None = None
    rollouts: int = 1
    greedy: bool = False
    scaffold: str | None = None

    def __post_init__(self) -> None:
        if not self.suite:
            raise ArgumentError("suite", "is empty: give the evaluation a name")
        if not 1 <= self.rollouts <= INT2:
            raise ArgumentError(
                "rollouts", f"{self.rollouts} is not a number of tries per task from 1 to {INT2}"
            )
        try:
            check_submission(f"{self.prefix(INT4)}{self._how}{'0' * HASH}")
        except ValueError:
            raise ArgumentError(
                "suite",
                f"{quoted(self.suite)} cannot be part of a submission id, which has at most 128 letters, digits or "
                "'_:@+=/-', with single dots inside: choose another name",
            ) from None

    def submission(self, version: int, task: Task) -> str:
        """An id made of the request's options, so that the same evaluation never runs twice."""
        return f"{self.prefix(version)}{self._how}{task.content_hash[:HASH]}"

    def prefix(self, version: int) -> str:
        return f"eval:{self.suite}:{version}:"

    @property
    def _how(self) -> str:
        scaffold = f":{self.scaffold}" if self.scaffold else ""
        return f"{self.rollouts}{'g' if self.greedy else ''}{scaffold}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationClient:
    """A running stack as a client sees it. `reserved`: the number of rollout servers that serve versions pinned by evaluations.
    `domains`: the domains of categories. `at`: the end of a command line that means the run."""

    run: str
    run_id: int
    bus: Bus
    engine: AsyncEngine
    reserved: int
    domains: Mapping[str, str] = field(default_factory=dict)
    at: str = ""

    async def evaluate(
        self,
        tasks: Sequence[Task],
        request: EvaluationRequest,
        tick: Tick = lambda *_: None,
        resolved: Callable[[int], object] = lambda _: None,
        waits: Callable[[str], object] = lambda _: None,
        levels: Mapping[str, Vetting] = MappingProxyType({}),
    ) -> Evaluation:
        """Run every task and wait. `resolved` receives the version, `waits` a sentence about each condition that delays or endangers the result;
        `levels`: those that travel with the tasks, by content hash.

        Raises ConfigurationError when the request cannot be fulfilled exactly, PenstockError when nothing progresses any more."""
        if not tasks:
            raise ArgumentError("suite", f"{quoted(request.suite)} has no task")
        await self._first_version(waits)
        async with self.engine.connect() as connection:
            version = await self._version(connection, request.version)
            resolved(version)
            await self._same(connection, request, tasks)
            done, total = await evaluation_counts(connection, self.run_id, request.suite, version)
        if done < total or total < len({task.content_hash for task in tasks}):
            await self._servable(version)
            if await self._training_moves():
                waits(
                    f"training goes on and no rollout server is reserved: a version that it publishes takes the servers from version {version}, and "
                    "groups that are not done by then give no result. To be sure, set servers.evaluation = 1 (with servers.embedded = 2, or two "
                    f"servers.urls) and start the run again, or pause it first: penstock run pause{self.at}"
                )
            await self._publish(tasks, request, version, levels)
            await self._wait(tasks, request.suite, version, tick)
        async with self.engine.connect() as connection:
            (found,) = await evaluations(connection, self.run_id, suite=request.suite, version=version)
        return found

    async def unscored(self, found: Evaluation) -> list[Unscored]:
        """The reasons why groups of an evaluation have no result."""
        async with self.engine.connect() as connection:
            return await unscored(connection, self.run_id, found.suite, found.version)

    async def _training_moves(self) -> bool:
        """Whether a new version may be published during this evaluation, on servers that it shares with training."""
        if self.reserved:
            return False
        async with self.engine.connect() as connection:
            return await is_training(connection, self.run_id)

    async def _first_version(self, waits: Callable[[str], object]) -> None:
        """Return once the run has a policy version, or after `ANSWER_S`."""
        announced = False
        with anyio.move_on_after(ANSWER_S):
            while True:
                async with self.engine.connect() as connection:
                    if await has_version(connection, self.run_id):
                        return
                if not announced:
                    waits(
                        f"run {self.run!r} has no policy version yet: waiting up to {ANSWER_S:.0f} s for its trainer, which publishes the first"
                    )
                    announced = True
                await anyio.sleep(POLL_INTERVAL_S)

    async def _version(self, connection: AsyncConnection, wanted: int | None) -> int:
        newest = await newest_version(connection, self.run_id)
        if newest is None:
            raise ConfigurationError(f"run {quoted(self.run)} has no policy version yet: is its trainer up?")
        if wanted is None:
            return newest
        row = await published_version(connection, self.run_id, wanted)
        if row is None:
            raise ConfigurationError(
                f"run {quoted(self.run)} never published policy version {wanted}; its newest is {newest}"
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
        self, connection: AsyncConnection, request: EvaluationRequest, tasks: Sequence[Task]
    ) -> None:
        """Refuse a suite that holds other tasks or options, on any version: they would be mixed into one figure or one curve."""
        requested: dict[int, set[str]] = {}  # by version
        # A person may have retried dead groups (`penstock dead retry`).
        for version, submission in await evaluated_submissions(connection, self.run_id, request.suite):
            if version not in requested:
                requested[version] = {tried(request.submission(version, task)) for task in tasks}
            if tried(submission) not in requested[version]:
                raise ArgumentError(
                    "suite",
                    f"{quoted(request.suite)} was evaluated on version {version} with other tasks or options "
                    f"(such as {submission}): give this one another name",
                )

    async def _servable(self, version: int) -> None:
        """Return once a rollout server serves the version, or servers are reserved. ConfigurationError if none serves it in `SERVED_S`."""
        if self.reserved:
            return
        with anyio.move_on_after(SERVED_S):
            while True:
                async with self.engine.connect() as connection:
                    newest = await self._version(connection, None)
                    served = await served_versions(connection, self.run_id)
                if version != newest:
                    raise ConfigurationError(
                        f"policy version {version} cannot be evaluated: every rollout server serves the newest version, which is "
                        f"{newest}; reserve one with servers.evaluation = 1 (and servers.embedded = 2), or evaluate the newest"
                    )
                if version in served:
                    return
                await anyio.sleep(POLL_INTERVAL_S)
        raise ConfigurationError(
            f"no rollout server served policy version {version} within {SERVED_S:.0f} s: is the stack up? (penstock status{self.at})"
        )

    async def _publish(
        self, tasks: Sequence[Task], request: EvaluationRequest, version: int, levels: Mapping[str, Vetting]
    ) -> None:
        """Publish and wait for acceptance. Tasks accepted before are no-ops."""
        events = [
            (
                task.settings.metadata.domain_in(self.domains),
                TaskSubmitted(
                    task=task.to_message(),
                    submission=request.submission(version, task),
                    purpose=Purpose.EVAL,
                    scaffold=request.scaffold,
                    group_size=request.rollouts,
                    label=request.suite,
                    version=version,
                    sampling={"temperature": 0.0} if request.greedy else None,
                    vetting=levels.get(task.content_hash),
                ),
            )
            for task in tasks
        ]
        for start in range(0, len(events), PAGE):
            page = events[start : start + PAGE]
            needed = blobs_of(tasks[start : start + PAGE])
            answers = await publish_tasks(self.bus, self.run, page, timeout_s=ANSWER_S, blobs=needed)
            for _, event in page:
                answer = answers.get(event.submission or "")
                if answer is None:
                    raise PenstockError(
                        f"the task {event.submission} was not answered: is the orchestrator up?"
                    )
                status, reason = answer
                if status is not SubmissionStatus.ACCEPTED:
                    raise PenstockError(
                        f"the task {event.submission} was {status}: {reason}. That answer is final for this name: once its cause is gone, "
                        "give the evaluation another one"
                    )

    async def _wait(self, tasks: Sequence[Task], suite: str, version: int, tick: Tick) -> None:
        patience = Patience(
            engine=self.engine,
            run_id=self.run_id,
            purpose=Purpose.EVAL,
            label=suite,
            version=version,
            longest_s=max(longest_s(task) for task in tasks),
        )
        while True:
            async with self.engine.connect() as connection:
                done, total = await evaluation_counts(connection, self.run_id, suite, version)
            tick(done, total)
            if done == total:
                return
            if (silent := await patience.over(done)) is not None:
                raise PenstockError(
                    f"only {done} of {total} groups ended, and no rollout advanced in the last {silent:.0f} s; `penstock status{self.at}` says what "
                    "holds them up. Start the same evaluation again to continue"
                )
            await anyio.sleep(POLL_INTERVAL_S)


@asynccontextmanager
async def connected(home: Home) -> AsyncIterator[EvaluationClient]:
    """A client of the stack that runs in `home`. Raises ConfigurationError or ServiceError when none runs."""
    config = home.connected()
    async with (
        opened_run(config, Role.READER, name="penstock-eval") as (engine, run),
        NatsBus.connect(config.services.nats_url, name="penstock-eval") as bus,
    ):
        yield EvaluationClient(
            run=run.name,
            run_id=run.run_id,
            bus=bus,
            engine=engine,
            reserved=config.servers.evaluation,
            domains=effective(run.config, config).tasks.domains,
            at=home.option,
        )
