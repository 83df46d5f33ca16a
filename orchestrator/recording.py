"""Recording demonstrations through the gateway, like any rollout: publish, wait until all are scored.

    async with connected(home) as studio:
        recorded = await studio.record(drawn := demonstrations(4000, 0, {"shell": 1.0}), label_of(drawn), tick=print)

Sandboxes, observations, token ids and verdicts are real; only the policy is replaced, by each task's script. Recording the same
demonstrations again is a no-op, so an interrupted recording continues where it stopped.
"""

import hashlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.feed import in_background
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.languages import toml_text
from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.deploy.home import Home
from orchestrator.deploy.stack import up
from orchestrator.pool.engine import Role
from orchestrator.pool.opened import opened_run
from orchestrator.publish import blobs_of, publish_tasks
from orchestrator.queries.silence import Patience
from orchestrator.queries.submitted import RecordingProgress, recording_progress
from orchestrator.settings.config import FILE
from orchestrator.tasks.longest_silence import longest_s
from orchestrator.tasks.suite.record import Demonstration

T = TypeVar("T")

PROCESSES = (ProcessRole.ORCHESTRATOR, ProcessRole.GATEWAY, *WORKERS)
PAGE = 64  # demonstrations published before the next ones wait for their acceptance
POLL_INTERVAL_S = 0.5
ANSWER_S = 120.0  # for the orchestrator to accept published demonstrations


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDemonstrations:
    """The result of a recording. `good` of the demonstrations were meant to pass; `seconds` is wall clock, including publishing."""

    count: int
    good: int
    progress: RecordingProgress
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Studio:
    """A running stack as a client sees it."""

    run: str
    run_id: int
    bus: Bus
    engine: AsyncEngine

    async def record(
        self, demonstrations: Sequence[Demonstration], label: str, tick: Callable[[RecordingProgress], object]
    ) -> RecordedDemonstrations:
        """Play every demonstration once. `tick` is called about twice a second.

        PenstockError when one is refused, or when nothing progresses any more.
        """
        started = time.monotonic()

        async def publish() -> None:
            for start in range(0, len(demonstrations), PAGE):
                await self._publish(demonstrations[start : start + PAGE], label, start)

        async with in_background(publish):
            progress = await self._wait(label, demonstrations, tick)
        good = sum(demonstration.good for demonstration in demonstrations)
        return RecordedDemonstrations(
            count=len(demonstrations), good=good, progress=progress, seconds=time.monotonic() - started
        )

    async def _publish(self, demonstrations: Sequence[Demonstration], label: str, start: int) -> None:
        page = _events(demonstrations, label, start)
        needed = blobs_of(demonstration.task for demonstration in demonstrations)
        answers = await publish_tasks(self.bus, self.run, page, timeout_s=ANSWER_S, blobs=needed)
        for _, event in page:
            answer = answers.get(event.submission or "")
            if answer is None:
                raise PenstockError(
                    f"the demonstration {event.submission} was not answered: is the orchestrator up?"
                )
            status, reason = answer
            if status is not SubmissionStatus.ACCEPTED:
                raise PenstockError(f"the demonstration {event.submission} was {status}: {reason}")

    async def _wait(
        self,
        label: str,
        demonstrations: Sequence[Demonstration],
        tick: Callable[[RecordingProgress], object],
    ) -> RecordingProgress:
        count = len(demonstrations)
        patience = Patience(
            engine=self.engine,
            run_id=self.run_id,
            purpose=Purpose.RECORD,
            label=label,
            longest_s=max((longest_s(each.task) for each in demonstrations), default=0.0),
        )
        while True:
            progress = await self.progress(label)
            tick(progress)
            if progress.ended >= count:
                return progress
            if (silent := await patience.over(progress.ended)) is not None:
                raise PenstockError(
                    f"only {progress.ended} of {count} demonstrations ended, and none advanced in the last {silent:.0f} s; see the logs"
                )
            await anyio.sleep(POLL_INTERVAL_S)

    async def progress(self, label: str) -> RecordingProgress:
        """How far the rollouts of `label` are, from the data pool."""
        async with self.engine.connect() as connection:
            return await recording_progress(connection, self.run_id, label)


def label_of(demonstrations: Sequence[Demonstration]) -> str:
    """A label unique to these demonstrations: another number, seed or share of scaffolds gives another label."""
    digest = hashlib.sha256()
    for demonstration in demonstrations:
        digest.update(f"{demonstration.task.content_hash} {demonstration.scaffold}\n".encode())
    return f"demonstrations-{digest.hexdigest()[:16]}"


def _events(
    demonstrations: Sequence[Demonstration], label: str, start: int
) -> list[tuple[str, TaskSubmitted]]:
    """(domain, event) pairs. Submission ids sort in the order of the demonstrations, numbered from `start`, and change with their content."""
    return [
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
        for number, demonstration in enumerate(demonstrations, start)
    ]


@asynccontextmanager
async def connected(home: Home) -> AsyncIterator[Studio]:
    """A client of the stack that runs in `home`. Raises ConfigurationError or ServiceError when none runs."""
    config = home.connected()
    async with (
        opened_run(config, Role.READER, name="penstock-record") as (engine, run),
        NatsBus.connect(config.services.nats_url, name="penstock-record") as bus,
    ):
        yield Studio(run=run.name, run_id=run.run_id, bus=bus, engine=engine)


_STACK = """\
[run]
name = "demonstrations"

[policy]
model = {model}

[stage]
max_turns = 4
max_context = 4096

[sampling]
max_new_tokens = 256

[rollout]
slots = {slots}
verify_slots = {verify_slots}
timeout_s = 300
completion_s = 300
tool_timeout_s = 60
observation_lines = 3

[sandbox]
provider = {sandbox}
memory_mb = 512
processes = 64
cpu_s = 60
disk_mb = 64
"""


def stack_configuration(model: Path, *, slots: int, verify_slots: int, sandbox: str) -> str:
    """The text of penstock.toml of a stack that records."""
    return _STACK.format(
        model=toml_text(str(model.resolve())),
        slots=slots,
        verify_slots=verify_slots,
        sandbox=toml_text(sandbox),
    )


async def with_own_stack(
    model: Path, work: Callable[[Home], Awaitable[T]], *, slots: int, verify_slots: int, sandbox: str
) -> T:
    """Run `work` on a separate stack, without rollout server and trainer, in a temporary directory that is deleted afterwards.

    KeyboardInterrupt when a signal stopped the stack first.
    """
    result: list[T] = []
    with tempfile.TemporaryDirectory(prefix="penstock-record-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL may run as a different user
        configuration = stack_configuration(model, slots=slots, verify_slots=verify_slots, sandbox=sandbox)
        (directory / FILE).write_text(configuration, encoding="utf-8")
        home = Home.at(directory)
        ready = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await up(home, only=PROCESSES, on_started=lambda _: ready.set())
                tasks.cancel_scope.cancel()

            tasks.start_soon(serve)
            await ready.wait()
            result.append(await work(home))
            tasks.cancel_scope.cancel()
    if not result:
        raise KeyboardInterrupt
    return result[0]
