"""Intake: turns task messages into groups. A task is accepted when its row is committed; then its sender gets the answer.

| produces | waits for | unblocked by |
|---|---|---|
| groups, rollouts, submissions, notices | TASKS, and the blobs that a task names | users |

One durable serves all runs, so a task for an unknown run is dead-lettered with the reason instead of staying unread. Bad tasks are answered
`rejected` with one sentence, and stored as dead letters. The answer uses the id that the message gives, even if nothing else in it is readable.
The same holds for a task that Postgres refuses.

A task is read and checked in a thread before the transaction begins: the process goes on, and Postgres ends no transaction that waits for it. A
large message is decoded there too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import anyio.to_thread
from scaffolds.controls import CONTROLS
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.blobs.task_files import BlobsMissing, ReadTask, TaskFiles
from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.contracts.errors import ConfigurationError, MessageError
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, decode_written, encode
from orchestrator.contracts.ids import is_name, sha256
from orchestrator.contracts.limits import MAX_LABEL, MAX_REJECTION
from orchestrator.contracts.quote import cut_to, quoted
from orchestrator.contracts.states import Purpose, RunState, SubmissionStatus
from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.pool import blobs
from orchestrator.pool.policy_versions import check_pinned
from orchestrator.pool.runs import StoredRun, find_run, intake_open, state_of, takes_steps
from orchestrator.pool.submissions import Answer, NewGroup, accept, answered, reject
from orchestrator.pool.transact import of_content, passing, sentence
from orchestrator.pool.vettings import find_vetting, keep_vetting
from orchestrator.roles.consume import Later, Outcome, consume
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.backoff import doubled
from orchestrator.settings.config import Config
from orchestrator.settings.curriculum import StageSection
from orchestrator.settings.newest_start import newest_config
from orchestrator.settings.sampling import checked
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import SOLUTION, Task
from orchestrator.tasks.unfit import unfit
from orchestrator.tasks.vetting.required import check_level

BLOB_TRIES = 15
"""Deliveries of a task whose blobs have not all arrived, before it is refused: about 50 s."""
BLOB_WAIT_S = 5.0
LARGE: Final = 1 << 16
"""Bytes of a message from which it is decoded in a thread."""
T = TypeVar("T")
_CLOSED_BY: Final = {
    RunState.ACTIVE: "",
    RunState.ENDING: ", because it is ending",
    RunState.ENDED: ", because it has ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A message as decoded, and its task as a run reads it, or the error that reading or checking raised."""

    run_id: int
    config: Config
    schema: str | None
    body: bytes
    event: TaskSubmitted
    read: ReadTask | Exception

    def is_of(self, run: StoredRun, delivery: Delivery) -> bool:
        """Whether `delivery` brought it to `run`, under the same schema: an equal body under another schema is refused."""
        return (self.run_id, self.schema, self.body) == (run.run_id, delivery.schema, delivery.body)


@dataclass(frozen=True, slots=True)
class _Notice:
    run: str
    answer: Answer


class Intake:
    """`registered_scaffolds` are the names that tasks of any run may request. The shares of a task's own run join them."""

    def __init__(self, context: OrchestratorContext, registered_scaffolds: Sequence[str]) -> None:
        self._context = context
        self._files = TaskFiles.of(context.engine, context.config.tasks)
        self._registered_scaffolds = registered_scaffolds
        self._configs = {context.run_id: context.config}
        self._kept: dict[int, dict[str, Any] | None] = {}
        self._run_ids = {context.run: context.run_id}
        self._prepared: list[_Prepared] = []
        self._notices: list[_Notice] = []

    async def run(self) -> None:
        """Consume until cancelled."""
        await consume(
            self._context,
            subjects.consume_tasks(),
            self._handle,
            batch=32,
            before=self._prepare,
            after=self._tell,
            refused=self._tell_refused,
            at="intake.commit",
        )

    async def _prepare(self, deliveries: Sequence[Delivery]) -> None:
        """Read and check the tasks of the runs that are known. `_answer` reads the others, and again those that a failure of the platform (a full
        disk) kept from being read: its transaction is repeated until they are."""
        self._prepared = []
        for delivery in deliveries:
            run_id = self._run_ids.get(delivery.subject.split(".")[1])
            if run_id is None:
                continue
            try:
                event = await _decoded(delivery)
            except (MessageError, ValueError, RecursionError):
                continue  # `_answer` says so
            found = await self._read(run_id, delivery, event)
            if not (isinstance(found.read, Exception) and passing(found.read)):
                self._prepared.append(found)

    async def _read(self, run_id: int, delivery: Delivery, event: TaskSubmitted) -> _Prepared:
        config = self._configs[run_id]
        read: ReadTask | Exception
        try:
            read = await self._files.submitted(event.task, BundleLimits.of(config.tasks))
            await anyio.to_thread.run_sync(_check, read.task, config.sandbox)
        except Exception as error:  # noqa: BLE001  # `_answer` raises it, if the task is not answered already
            read = error
        return _Prepared(
            run_id=run_id, config=config, schema=delivery.schema, body=delivery.body, event=event, read=read
        )

    async def _handle(
        self, connection: AsyncConnection, deliveries: Sequence[Delivery]
    ) -> Mapping[int, Outcome]:
        self._notices.clear()
        outcomes: dict[int, Outcome] = {}
        for i, delivery in enumerate(deliveries):
            run_name = delivery.subject.split(".")[1]
            run = await find_run(connection, run_name) if is_name(run_name) else None
            if run is None:
                outcomes[i] = (
                    f"run {run_name!r:.80} does not exist: start it with `penstock up`, or correct the subject"
                )
                continue
            try:
                answer, reason = await self._answer(connection, run, delivery)
            except BlobsMissing as error:
                if delivery.deliveries < BLOB_TRIES:
                    outcomes[i] = Later(min(doubled(0.1, delivery.deliveries), BLOB_WAIT_S))
                    continue
                # No row: the same submission may come again with its blobs.
                answer, reason = await _refused(delivery, str(error)), str(error)
            if reason is not None:
                outcomes[i] = reason
            if answer is not None:
                self._notices.append(_Notice(run.name, answer))
        return outcomes

    async def _answer(
        self, connection: AsyncConnection, run: StoredRun, delivery: Delivery
    ) -> tuple[Answer, str | None]:
        """The answer to give, and the reason for a dead letter when the message is unusable."""
        submission = sha256(delivery.body).hex()
        try:
            _, domain = subjects.parse_tasks(delivery.subject)
            prepared = next((each for each in self._prepared if each.is_of(run, delivery)), None)
            event = prepared.event if prepared is not None else await _decoded(delivery)
            if event.submission is not None:
                submission = subjects.check_submission(event.submission)
        except (MessageError, ValueError) as error:
            # No submission and no row exist: the same body may come again with a valid address. The sender still gets an answer.
            message = cut_to(str(error), MAX_REJECTION)
            return await _refused(delivery, message), message
        try:
            known = await answered(connection, run.run_id, submission)
            if known is not None:
                return known, None
            config = self._config(run)
            self._run_ids[run.name] = run.run_id
            if prepared is None or prepared.config is not config:
                prepared = await self._read(run.run_id, delivery, event)
            read = prepared.read
            if isinstance(read, Exception):
                raise read
            group = self._group(run, domain, submission, event, read.task)
            if absent := await blobs.name(connection, read.blobs):
                raise BlobsMissing(absent)
            came = event.vetting
            if came is not None and not came.counts_for(group.task_sha.hex()):
                came = None
            await self._check_level(connection, run.run_id, group, came)
            if not await takes_steps(connection, run.run_id):
                raise MessageError(
                    f"run {quoted(run.name)} accepts no more tasks: it has ended and is pruned"
                )
            if group.purpose is Purpose.TRAIN and not await intake_open(connection, run.run_id):
                state = await state_of(connection, run.run_id)  # of now: `run` may be older
                raise MessageError(
                    f"run {quoted(run.name)} accepts no more training tasks: its intake is closed{_CLOSED_BY[state]}"
                )
            if group.pinned_version is not None:
                keep = self._configs[run.run_id].trainer.keep_checkpoints
                await check_pinned(connection, run.run_id, group.pinned_version, keep)
            async with connection.begin_nested():
                if came is not None:
                    await keep_vetting(connection, run.run_id, came)
                return await accept(connection, run.run_id, group), None
        except BlobsMissing:
            raise
        except (MessageError, ConfigurationError, ValueError, DBAPIError) as error:
            if isinstance(error, DBAPIError):
                if not of_content(error):
                    raise
                message = cut_to(f"the database does not take it: {sentence(error)}", MAX_REJECTION)
            else:
                message = cut_to(str(error), MAX_REJECTION)
            answer = await reject(connection, run.run_id, submission, message)
            return answer, message if answer.new else None

    async def _check_level(
        self, connection: AsyncConnection, run_id: int, group: NewGroup, came: Vetting | None
    ) -> None:
        """ValueError unless the task has the level that the run requires: a row of the run says so, or `came`, which its message brought. That is
        the publisher's word, as the task itself is."""
        required, sha256 = self._configs[run_id].tasks.require, group.task_sha.hex()
        if required is not Level.NONE:
            stored = await find_vetting(connection, run_id, sha256)
            check_level(group.task_name, sha256, required, came, stored)

    def _config(self, run: StoredRun) -> Config:
        """The configuration by which the run's tasks are judged. That of another run is the same at every orchestrator: it follows the run's row, in
        which each start of the run's own orchestrator keeps its process keys."""
        if run.run_id == self._context.run_id:
            return self._context.config
        if run.run_id not in self._configs or self._kept.get(run.run_id) != run.process_config:
            self._configs[run.run_id] = newest_config(run.config, run.process_config)
            self._kept[run.run_id] = run.process_config
        return self._configs[run.run_id]

    def _group(
        self, run: StoredRun, domain: str, submission: str, event: TaskSubmitted, task: Task
    ) -> NewGroup:
        config = self._config(run)
        purpose = event.purpose
        if purpose is Purpose.TRAIN:
            check_stage(config.stage, domain, task.settings.metadata.difficulty)
        # An evaluation repeats with the same seeds and scaffolds under any submission id.
        origin = task.content_hash if purpose is Purpose.EVAL else submission
        digest = sha256(f"{config.run.seed}:{origin}".encode())
        scaffold = event.scaffold
        if scaffold is None:
            scaffold = _share(config.rollout.scaffolds, int.from_bytes(digest[8:16], "big") / 2**64)
        known = dict.fromkeys((*self._registered_scaffolds, *config.rollout.scaffolds))
        if scaffold not in known:
            raise MessageError(f"unknown scaffold {quoted(scaffold)}; known: {', '.join(known)}")
        _check_control(scaffold, purpose, task)
        _check_extras(scaffold, task)
        size = event.group_size
        if size is None:
            size = config.queue.group_size if purpose is Purpose.TRAIN else 1
        if size < 1 or (purpose is Purpose.TRAIN and size < 2):
            raise MessageError(
                f"group_size is {size}: a training group compares at least 2 rollouts, others need at least 1"
            )
        if size > config.rollout.slots + config.queue.group_size - 1:
            raise MessageError(
                f"group_size is {size}, but only {config.rollout.slots} rollouts run at once: it would never start"
            )
        if event.version is not None and (purpose is Purpose.TRAIN or not 0 <= event.version < 2**31):
            raise MessageError(
                f"version is {event.version}: only eval and record groups pin a policy version, from 0 on"
            )
        if event.sampling and purpose is Purpose.TRAIN:
            raise MessageError(
                "sampling is given: only eval and record groups have sampling parameters of their own"
            )
        sampling = checked(event.sampling or {})
        return NewGroup(
            submission=submission,
            task_sha=bytes.fromhex(task.content_hash),
            task_name=task.name,
            domain=domain,
            settings=task.settings.model_dump(mode="json"),
            body=task.to_message(),
            purpose=purpose,
            scaffold=scaffold,
            size=size,
            seed=int.from_bytes(digest[:8], "big") >> 2,
            label=_label(event),
            pinned_version=event.version,
            sampling=sampling or None,
            pool=subjects.pool_for(purpose),
            difficulty=task.settings.metadata.difficulty
            if purpose is Purpose.TRAIN and config.stage.then
            else None,
        )

    async def _tell(self) -> None:
        for notice in self._notices:
            await self._notify(notice)
        if self._notices:
            self._context.signals.work.set()

    async def _tell_refused(self, delivery: Delivery, reason: str) -> None:
        run = delivery.subject.split(".")[1]
        if is_name(run):
            await self._notify(_Notice(run, await _refused(delivery, reason)))

    async def _notify(self, notice: _Notice) -> None:
        answer = notice.answer
        answered = SubmissionAnswered(
            submission=answer.submission, status=answer.status, reason=answer.reason, earlier=not answer.new
        )
        await self._context.bus.notify(subjects.accepted(notice.run, answer.submission), encode(answered))


def _check(task: Task, sandbox: SandboxSection) -> None:
    """Everything of a task that takes long and needs no transaction; its message and its hash are kept."""
    check_admissible(task, sandbox)
    _ = task.content_hash


async def _decoded(delivery: Delivery) -> TaskSubmitted:
    """The message. Raises like `decode_written`."""
    return await _aside(
        delivery, partial(decode_written, delivery.body, delivery.schema, expected=TaskSubmitted)
    )


async def _aside(delivery: Delivery, work: Callable[[], T]) -> T:
    """The result of `work` over the message's body, done in a thread if that is large."""
    return await anyio.to_thread.run_sync(work) if len(delivery.body) > LARGE else work()


async def _refused(delivery: Delivery, reason: str) -> Answer:
    """The answer for a submission that is not recorded."""
    named = await _aside(delivery, partial(subjects.submission_named, delivery.body))
    return Answer(
        submission=named or sha256(delivery.body).hex(),
        status=SubmissionStatus.REJECTED,
        reason=cut_to(reason, MAX_REJECTION),
        new=True,
    )


def check_stage(stages: StageSection, domain: str, difficulty: str) -> None:
    """Raise MessageError when no stage accepts such a task."""
    if any(stage.takes(domain, difficulty) for stage in stages.all):
        return
    open_ = [stage for stage in stages.all if stage.has(domain)]
    if not open_:
        names = " or ".join(repr(stage.name) for stage in stages.all)
        known = dict.fromkeys(name for stage in stages.all for name in stage.domains)
        raise MessageError(
            f"domain {quoted(domain)} has no share in stage {names}; known: {', '.join(known)}"
        )
    known = dict.fromkeys(name for stage in open_ for name in stage.difficulties)
    raise MessageError(
        f"difficulty {quoted(difficulty)} of domain {quoted(domain)} trains in no stage; known: {', '.join(known)}"
    )


def _label(event: TaskSubmitted) -> str | None:
    """The label of a submission. MessageError for one that is too long or that no text column holds."""
    label = event.label or None
    if label is not None and len(label) > MAX_LABEL:
        raise MessageError(f"label has {len(label)} characters, at most {MAX_LABEL} fit")
    if label is not None and "\0" in label:
        raise MessageError(f"label {quoted(label)} holds a NUL character: take it out")
    return label


def _check_control(scaffold: str, purpose: Purpose, task: Task) -> None:
    """Raise MessageError for a control outside of evaluations, or without the files that it needs. A runner refuses other scaffolds that never
    train."""
    if scaffold not in CONTROLS:
        return
    if purpose is not Purpose.EVAL:
        raise MessageError(
            f"rollouts of the scaffold {scaffold} are only evaluated, never trained or recorded: "
            f"run `penstock eval --suite DIR --scaffold {scaffold}`"
        )
    if scaffold == "oracle" and not task.is_solved:
        where = " for every step" if task.is_multi_step else ""
        raise MessageError(f"task {task.name} has no {SOLUTION}{where}, which the scaffold oracle runs")


def _check_extras(scaffold: str, task: Task) -> None:
    """Raise MessageError if the task brings something that the scaffold's program is not given. Other tasks load no scaffold."""
    for problem in unfit(task, scaffold):
        raise MessageError(f"task {task.name}: {problem}")


def _share(shares: Mapping[str, float], at: float) -> str:
    """The name at `at` in [0, 1) of the shares laid end to end: deterministic by submission."""
    total = sum(shares.values())
    reached = 0.0
    name = ""
    for name, share in shares.items():
        reached += share / total
        if at < reached:
            return name
    return name
