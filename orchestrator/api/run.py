"""A run as a library user holds it."""

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.api.arguments import callback, flag, number, place, seconds, words
from orchestrator.api.filters import TrajectoryFilters, attempt_filters
from orchestrator.api.frame import FrameBuilder
from orchestrator.api.published import Published, accepted_in
from orchestrator.api.reading import Callbacks, as_service_error
from orchestrator.api.scaffolds import ScaffoldLike, reference
from orchestrator.api.trajectory import Trajectory, trajectory_of
from orchestrator.bus.base import Bus, BusError
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ArgumentError, ConfigurationError, NotFoundError, ServiceError
from orchestrator.contracts.numbers import INT2, INT4
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.deploy.home import UNKNOWN, Home
from orchestrator.evaluation import EvaluationClient, EvaluationRequest
from orchestrator.export.rows import STEPS, TRAJECTORIES, step_rows, trajectory_row
from orchestrator.pool import runs
from orchestrator.publish import PublishOptions, blobs_of, offered_scaffold, publish_tasks, read_purpose
from orchestrator.queries import evaluations as evaluation_queries
from orchestrator.queries.attempt_filters import Bound, read_since
from orchestrator.queries.attempt_pages import check_wanted, each_attempt
from orchestrator.queries.attempts import RecordedAttempt
from orchestrator.queries.evaluations import Evaluation, Unscored
from orchestrator.queries.scalars import clock_and_created
from orchestrator.queries.submitted import SubmittedGroup, submitted_groups
from orchestrator.settings.config import Config, describe_ignored, ignored
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sources import Refusal, admissible, each, together
from orchestrator.tasks.unfit import drawn
from orchestrator.vetting.required import below, check_required, filed, kept

if TYPE_CHECKING:
    import pandas

POLL_INTERVAL_S = 0.1
ANSWER_S = 60.0
_OF_TASKS = ("sandbox.", "tasks.", "rollout.scaffolds")
"""The keys of the run that publishing and evaluating read."""
Progress = Callable[[int, int], object]
"""(items done, all items)."""


class Run:
    """A connected run: `orchestrator.api.connect` opens it. Any number of its methods may run at the same time. Reading needs PostgreSQL
    alone; `publish` and `evaluate` need NATS and a run whose processes are up."""

    def __init__(
        self, home: Home, *, config: Config, own: Config, engine: AsyncEngine, stored: runs.StoredRun
    ) -> None:
        """Private: `connect` makes runs. `config` is the configuration in force, `own` that of the file."""
        self._home = home
        self._config = config
        self._own = own
        self._engine = engine
        self._stored = stored
        self._closed = False  # set by `connect`

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {str(self.directory)!r})"

    @property
    def name(self) -> str:
        """The name of the run in its database."""
        return self._stored.name

    @property
    def directory(self) -> Path:
        """The directory of its penstock.toml: `penstock status -c DIRECTORY` shows the same run."""
        return self._home.file.parent

    async def publish(
        self,
        *tasks: str | Path | Task,
        purpose: str = Purpose.TRAIN,
        label: str | None = None,
        scaffold: ScaffoldLike | None = None,
        group_size: int | None = None,
        domain: str | None = None,
        timeout_s: float = ANSWER_S,
        on_progress: Progress = lambda *_: None,
    ) -> Published:
        """Publish tasks and wait until each is accepted or refused, as `penstock tasks publish` does.

        `tasks`: task directories, folders of them, .jsonl files, or `Task` values. `purpose`: train, eval or record, as a text or a `Purpose`.
        `label`: a name for these submissions, part of their ids; the answer to an id is final, so the same task is published again under
        another label. `scaffold`: for all of them (None: the run's shares). `group_size`: rollouts per task (None: the run's for training,
        else 1). `domain`: for all of them (None: each task's). `timeout_s`: seconds without any answer after which the rest is given up.
        `on_progress` receives answered and all tasks; its error ends the call and is raised as it is.

        A warning names the keys of the file that the run does not follow, because it keeps those that it began with.

        Raises ArgumentError for an option that cannot be used, ConfigurationError if the file's `tasks.require` is above the run's, ValueError
        if a task cannot be read or the run cannot take it; nothing is published then. ServiceError if NATS cannot be reached.
        """
        if label is not None:
            words("label", label)
        if domain is not None:
            words("domain", domain)
        seconds("timeout_s", timeout_s)
        callback("on_progress", on_progress, takes=2)
        given = [_source(task) for task in tasks]
        options = PublishOptions(
            purpose=read_purpose(purpose),
            label=label,
            scaffold=self._offered(scaffold),
            group_size=None if group_size is None else number("group_size", group_size, least=1, most=INT2),
            domain=domain,
            domains=self._config.tasks.domains,
        )
        scaffolds = (options.scaffold,) if options.scaffold else drawn(self._config.rollout.scaffolds)
        found, levels = await self._checked(given, scaffolds, "nothing is published")
        events = [options.event(task, levels.get(task.content_hash)) for task in found]
        earlier: set[str] = set()
        async with self._bus() as bus:
            answers = await publish_tasks(
                bus, self.name, events, timeout_s, on_progress, earlier.add, blobs=blobs_of(found)
            )
        ids = list(dict.fromkeys(event.submission or "" for _, event in events))
        stays = " (answered earlier, and that stays: use another label)"
        return Published(
            accepted=tuple(id for id in ids if id in answers and answers[id][0] is SubmissionStatus.ACCEPTED),
            refused={
                id: (answers[id][1] or "") + (stays if id in earlier else "")
                for id in ids
                if id in answers and answers[id][0] is not SubmissionStatus.ACCEPTED
            },
            unanswered=tuple(id for id in ids if id not in answers),
        )

    async def wait(
        self, submissions: Published | Iterable[str], *, timeout_s: float | None = None
    ) -> Sequence[SubmittedGroup]:
        """Wait until all rollouts of these submissions have ended and their rewards are written; returns their groups.

        Of a `Published`, the accepted ones. It does not wait for training. The groups are ordered by submission. Raises NotFoundError for a
        submission that the run never accepted, TimeoutError after `timeout_s` seconds (None: it waits without end), ServiceError if
        PostgreSQL is away.
        """
        ids = set(accepted_in(submissions))
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        open_ids = ids
        try:
            with anyio.fail_after(timeout_s):
                while True:
                    async with self._connection() as connection:
                        found = await submitted_groups(connection, self._stored.run_id, ids)
                    if absent := sorted(ids - {group.submission for group in found}):
                        raise NotFoundError(
                            f"run {quoted(self.name)} has accepted no submission {quoted(absent[0])}"
                        )
                    open_ids = {group.submission for group in found if not group.finished}
                    if not open_ids:
                        return found
                    await anyio.sleep(POLL_INTERVAL_S)
        except TimeoutError:
            raise TimeoutError(
                f"{len(open_ids)} of {len(ids)} submissions have not ended within {timeout_s:g} s; `penstock status` shows what they wait for"
            ) from None

    async def trajectories(
        self, *, limit: int | None = None, **filters: Unpack[TrajectoryFilters]
    ) -> AsyncGenerator[Trajectory, None]:
        """The trajectories of ended rollouts, ordered by rollout and attempt, as they are when the iteration begins; at most `limit`.

        They are read in pages, so that any number of them takes bounded memory. Raises ArgumentError for a filter that cannot be used,
        ConfigurationError if the run was pruned, ServiceError if PostgreSQL is away. So do the methods below that read trajectories.
        """
        async with aclosing(self._attempts(limit, filters)) as attempts:
            async for attempt in attempts:
                yield trajectory_of(attempt)

    async def trajectory(self, rollout_id: int) -> Trajectory:
        """The trajectory of one ended rollout: the attempt that counts. Raises NotFoundError."""
        number("rollout_id", rollout_id)
        async with aclosing(self._attempts(1, {"rollouts": (rollout_id,)})) as attempts:
            async for attempt in attempts:
                return trajectory_of(attempt)
        raise NotFoundError(f"run {quoted(self.name)} has no ended rollout {rollout_id}")

    async def trajectory_frame(
        self, *, limit: int | None = None, **filters: Unpack[TrajectoryFilters]
    ) -> "pandas.DataFrame":
        """A row per trajectory, with the columns of `penstock export parquet` (data/trajectories): identity, outcome, rewards, times.

        Raises ConfigurationError without pandas: pip install 'penstock[frame]'.
        """
        frame = FrameBuilder(TRAJECTORIES)
        async with aclosing(self._attempts(limit, filters)) as attempts:
            async for attempt in attempts:
                frame.add(trajectory_row(attempt))
        return frame.build()

    async def step_frame(
        self, *, full: bool = False, limit: int | None = None, **filters: Unpack[TrajectoryFilters]
    ) -> "pandas.DataFrame":
        """A row per step of at most `limit` trajectories, with the columns of `penstock export parquet` (data/steps). `full`: also each step's
        whole context, quadratic in the turns. Raises ConfigurationError without pandas: pip install 'penstock[frame]'."""
        flag("full", full)
        frame = FrameBuilder(STEPS)
        async with aclosing(self._attempts(limit, filters)) as attempts:
            async for attempt in attempts:
                for row in step_rows(attempt, full=full):
                    frame.add(row)
        return frame.build()

    async def evaluate(
        self,
        *tasks: str | Path | Task,
        suite: str,
        version: int | None = None,
        rollouts: int = 1,
        greedy: bool = False,
        scaffold: ScaffoldLike | None = None,
        on_progress: Progress = lambda *_: None,
        on_notice: Callable[[str], object] = lambda _: None,
    ) -> Evaluation:
        """Evaluate held-out tasks on one policy version and wait for the result, as `penstock eval` does. Nothing of it trains.

        `suite`: its name in the results. `version`: the policy version (None: the newest). `rollouts` per task; `greedy`: temperature 0.
        `scaffold`: for all tasks (None: the run's shares). `on_progress` receives ended and all groups, `on_notice` a sentence about each
        condition that delays or endangers the result; an error of either ends the call and is raised as it is. The same call continues an
        interrupted evaluation, and returns a finished one at once.

        Raises ArgumentError for an argument that cannot be used, ValueError if a task cannot be read or the run cannot take it,
        ConfigurationError if the request cannot be fulfilled exactly or the file's `tasks.require` is above the run's, ServiceError if NATS
        or PostgreSQL cannot be reached, PenstockError when nothing progresses any more.
        """
        callbacks = Callbacks()
        tick = callbacks.own(callback("on_progress", on_progress, takes=2))
        waits = callbacks.own(callback("on_notice", on_notice, takes=1))
        given = [_source(task) for task in tasks]
        name = self._offered(scaffold)
        request = EvaluationRequest(
            suite=words("suite", suite),
            version=None if version is None else number("version", version, most=INT4),
            rollouts=number("rollouts", rollouts, least=1, most=INT2),
            greedy=flag("greedy", greedy),
            scaffold=name,
        )
        offered = (name,) if name else drawn(self._config.rollout.scaffolds)
        found, levels = await self._checked(given, offered, "nothing is evaluated")
        async with self._bus() as bus:
            client = EvaluationClient(
                run=self.name,
                run_id=self._stored.run_id,
                bus=bus,
                engine=self._engine,
                reserved=self._config.servers.evaluation,
                domains=self._config.tasks.domains,
            )
            with as_service_error(callbacks):
                return await client.evaluate(found, request, tick=tick, waits=waits, levels=levels)

    async def evaluations(self, *, suite: str | None = None, version: int | None = None) -> list[Evaluation]:
        """The evaluations of this run, finished or not, ordered by suite and version; None selects all."""
        if suite is not None:
            words("suite", suite)
        if version is not None:
            number("version", version, most=INT4)
        async with self._connection() as connection:
            return await evaluation_queries.evaluations(
                connection, self._stored.run_id, suite=suite, version=version
            )

    async def unscored(self, evaluation: Evaluation) -> list[Unscored]:
        """The reasons why groups of an evaluation have no result, each with its number of groups, the most frequent first.

        Raises ArgumentError for a value that is not an `Evaluation`."""
        if not isinstance(evaluation, Evaluation):
            raise ArgumentError(
                "evaluation", f"must be an Evaluation, as `evaluate` returns it, not {quoted(evaluation)}"
            )
        async with self._connection() as connection:
            return await evaluation_queries.unscored(
                connection, self._stored.run_id, evaluation.suite, evaluation.version
            )

    async def _attempts(
        self, limit: int | None, filters: TrajectoryFilters
    ) -> AsyncGenerator[RecordedAttempt, None]:
        if limit is not None:
            number("limit", limit)
        wanted = attempt_filters(**filters)
        async with self._connection() as connection:
            now, _ = await clock_and_created(connection, self._stored.run_id)
            await check_wanted(connection, self._stored, wanted)
        bound = Bound(now, read_since(wanted.since, now))
        pages = each_attempt(self._engine, self._stored, wanted, bound, limit=limit)
        with as_service_error():
            async with aclosing(pages) as attempts:
                async for attempt in attempts:
                    yield attempt
                    self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError(
                f"the connection to run {quoted(self.name)} is closed: use it inside its `async with connect(…)`"
            )

    async def _checked(
        self, given: Sequence[Path | Task], scaffolds: Sequence[str], otherwise: str
    ) -> tuple[Sequence[Task], Mapping[str, Vetting]]:
        """The tasks and their levels next to them. Raises and warns as `publish` says."""
        self._warn_of_ignored()
        check_required(self._config.tasks.require, self._own.tasks.require, otherwise)
        found = await self._read(given, otherwise, scaffolds)
        levels = filed(task for task in given if not isinstance(task, Task))
        await self._check_vetted(found, levels, otherwise)
        return found, levels

    def _warn_of_ignored(self) -> None:
        """Warn the caller of the public method, which called `_checked`: which keys of the file do not count for tasks."""
        if keys := [key for key in ignored(self._stored.config, self._own) if key.startswith(_OF_TASKS)]:
            warnings.warn(describe_ignored(keys), stacklevel=4)

    async def _read(
        self, sources: Sequence[Path | Task], otherwise: str, scaffolds: Sequence[str] = ()
    ) -> Sequence[Task]:
        """All tasks, checked. ValueError names every one that the run, or one of `scaffolds`, cannot take."""
        found, problems = await anyio.to_thread.run_sync(
            partial(_admissible, sources, self._config, scaffolds)
        )
        if problems:
            raise ValueError(together(problems, otherwise))
        return found

    async def _check_vetted(
        self, tasks: Sequence[Task], levels: Mapping[str, Vetting], otherwise: str
    ) -> None:
        """ValueError that names every task whose level is below the one that this run requires."""
        required = self._config.tasks.require
        if required is Level.NONE:
            return
        async with self._connection() as connection:
            rows = await kept(connection, self._stored.run_id, tasks)
        if problems := below(tasks, required, levels, rows):
            raise ValueError(together([(each,) for each in problems], otherwise))

    def _offered(self, scaffold: ScaffoldLike | None) -> str | None:
        """The run's name for a scaffold; None stays."""
        if scaffold is None:
            return None
        return offered_scaffold(reference(scaffold), self._config.rollout.scaffolds, self._home.file)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        self._check_open()
        with as_service_error():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def _bus(self) -> AsyncIterator[Bus]:
        self._check_open()
        url = self._config.services.nats_url
        if not url:
            raise ConfigurationError(UNKNOWN.format(option="", variable="NATS_URL"))
        try:
            async with NatsBus.connect(url, name="penstock-api") as bus:
                yield bus
        except BusError as error:
            raise ServiceError(str(error)) from error


def _source(task: str | Path | Task) -> Path | Task:
    return task if isinstance(task, Task) else place("tasks", task)


def _admissible(
    sources: Iterable[Path | Task], config: Config, scaffolds: Sequence[str]
) -> tuple[list[Task], list[Refusal]]:
    found: list[tuple[str, Task | str]] = []
    limits = BundleLimits.of(config.tasks)
    for source in sources:
        found += [("", source)] if isinstance(source, Task) else each([source], limits)
    return admissible(found, config.sandbox, scaffolds)
