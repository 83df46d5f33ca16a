"""Intake: task messages become groups. A task is accepted when its row is committed; then its sender hears of it.

| produces | waits for | unblocked by |
|---|---|---|
| groups, rollouts, submissions, notices | TASKS | users |

One durable serves all runs, so a task for an unknown run is dead-lettered with the reason instead of lying unread. Bad tasks are answered
`rejected` with one sentence, and kept as dead letters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError, MessageError
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, decode, encode
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.states import Purpose
from orchestrator.course import StageSection
from orchestrator.flow.consume import consume
from orchestrator.flow.context import Flow
from orchestrator.gateway_client import SAMPLING_KEYS
from orchestrator.pool.clean import clean
from orchestrator.pool.policies import check_pinned
from orchestrator.pool.runs import Run, find_run, intake_open, takes_steps
from orchestrator.pool.submissions import Answer, NewGroup, accept, answered, reject
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task


@dataclass(frozen=True, slots=True)
class _Notice:
    run: str
    answer: Answer


class Intake:
    """`known_scaffolds` are the names that a task or a share may ask for."""

    def __init__(self, flow: Flow, known_scaffolds: Sequence[str]) -> None:
        self._flow = flow
        self._known_scaffolds = known_scaffolds
        self._configs = {flow.run_id: flow.config}
        self._notices: list[_Notice] = []

    async def run(self) -> None:
        """Consume until cancelled."""
        await consume(
            self._flow, subjects.consume_tasks(), self._handle, batch=32, after=self._tell, at="intake.commit"
        )

    async def _handle(self, connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        self._notices.clear()
        refused: dict[int, str] = {}
        for i, delivery in enumerate(deliveries):
            try:
                run_name, domain = subjects.parse_tasks(delivery.subject)
                run = await find_run(connection, run_name)
                if run is None:
                    raise MessageError(
                        f"there is no run {run_name!r}: start it with `penstock up`, or correct the subject"
                    )
            except (MessageError, ValueError) as error:
                refused[i] = str(error)
                continue
            answer, reason = await self._answer(connection, run, domain, delivery)
            if reason is not None:
                refused[i] = reason
            if answer is not None:
                self._notices.append(_Notice(run.name, answer))
        return refused

    async def _answer(
        self, connection: AsyncConnection, run: Run, domain: str, delivery: Delivery
    ) -> tuple[Answer | None, str | None]:
        """The answer to give, and the reason for a dead letter when the message is unusable."""
        submission = sha256(delivery.body).hex()
        try:
            event = decode(delivery.body, delivery.schema, TaskSubmitted)
            submission = subjects.check_submission(event.submission or submission)
        except (
            MessageError,
            ValueError,
        ) as error:  # nobody's submission: the same body may come again, well addressed
            return Answer(submission, "rejected", str(error), new=True), str(error)
        try:
            known = await answered(connection, run.run_id, submission)
            if known is not None:
                return known, None
            group = self._group(run, domain, submission, event)
            if not await takes_steps(connection, run.run_id):
                raise MessageError(f"run {run.name!r} takes no more tasks: it has ended and is pruned")
            if group.purpose is Purpose.TRAIN and not await intake_open(connection, run.run_id):
                raise MessageError(f"run {run.name!r} takes no more training tasks: its intake is closed")
            if group.pinned_version is not None:
                keep = self._configs[run.run_id].trainer.keep_checkpoints
                await check_pinned(connection, run.run_id, group.pinned_version, keep)
            return await accept(connection, run.run_id, group), None
        except (MessageError, ConfigurationError, ValueError) as error:
            answer = await reject(connection, run.run_id, submission, str(error))
            return answer, str(error) if answer.new else None

    def _group(self, run: Run, domain: str, submission: str, event: TaskSubmitted) -> NewGroup:
        config = self._configs.get(run.run_id)
        if config is None:
            config = self._configs[run.run_id] = Config.from_json(run.config)
        task = Task.from_message(event.task)
        check_admissible(task, config.sandbox)
        try:
            purpose = Purpose(event.purpose)
        except ValueError:
            raise MessageError(f"unknown purpose {event.purpose!r}; known: {', '.join(Purpose)}") from None
        if purpose is Purpose.TRAIN:
            check_stage(config.stage, domain, task.settings.metadata.difficulty)
        # An evaluation repeats with the same seeds and scaffolds whatever it is called.
        origin = task.content_hash if purpose is Purpose.EVAL else submission
        digest = sha256(f"{config.run.seed}:{origin}".encode())
        scaffold = event.scaffold or _share(
            config.rollout.scaffolds, int.from_bytes(digest[8:16], "big") / 2**64
        )
        if scaffold not in self._known_scaffolds:
            raise MessageError(f"unknown scaffold {scaffold!r}; known: {', '.join(self._known_scaffolds)}")
        size = event.group_size or (config.queue.group_size if purpose is Purpose.TRAIN else 1)
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
        if unknown := sorted(set(event.sampling or ()) - SAMPLING_KEYS):
            raise MessageError(
                f"unknown sampling key {unknown[0]!r}; known: {', '.join(sorted(SAMPLING_KEYS))}"
            )
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
            label=clean(event.label) if event.label else None,
            pinned_version=event.version,
            sampling=event.sampling or None,
            pool=subjects.POOL_DEFAULT if purpose is Purpose.TRAIN else subjects.POOL_EVAL,
            difficulty=task.settings.metadata.difficulty
            if purpose is Purpose.TRAIN and config.stage.then
            else None,
        )

    async def _tell(self) -> None:
        for notice in self._notices:
            answer = notice.answer
            body = encode(
                SubmissionAnswered(
                    submission=answer.submission,
                    status=answer.status,
                    reason=answer.reason,
                    earlier=not answer.new,
                )
            )
            await self._flow.bus.notify(subjects.accepted(notice.run, answer.submission), body)
        if self._notices:
            self._flow.signals.work.set()


def check_stage(course: StageSection, domain: str, difficulty: str) -> None:
    """Raise MessageError when no stage takes such a task."""
    if any(stage.takes(domain, difficulty) for stage in course.all):
        return
    open_ = [stage for stage in course.all if stage.has(domain)]
    if not open_:
        names = " or ".join(repr(stage.name) for stage in course.all)
        known = dict.fromkeys(name for stage in course.all for name in stage.domains)
        raise MessageError(f"domain {domain!r} has no share in stage {names}; known: {', '.join(known)}")
    known = dict.fromkeys(name for stage in open_ for name in stage.difficulties)
    raise MessageError(
        f"difficulty {difficulty!r} of domain {domain!r} trains in no stage; known: {', '.join(known)}"
    )


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
