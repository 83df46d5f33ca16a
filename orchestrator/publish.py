"""Publishing tasks and waiting until each is accepted or rejected. If answers stop, the unanswered tasks are published again: the same id is a
no-op. While answers arrive, nothing is published again: the orchestrator already has the rest, and copies would only slow it down."""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import msgspec
from scaffolds.find import file_of, known
from scaffolds.reference import split_path

from orchestrator.blobs.send import Progress, send_blobs
from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, BusError, Notice, Outgoing, StreamFull
from orchestrator.bus.feed import in_background
from orchestrator.bus.message_guard import apart
from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, encode
from orchestrator.contracts.ids import DOMAIN_RULE, is_domain, sha256
from orchestrator.contracts.limits import MAX_SUBMISSION
from orchestrator.contracts.numbers import INT2
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.contracts.vetting import Vetting
from orchestrator.settings.timeouts import timeouts
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.message import Part

KNOWN_RESEND_S = 0.2
WINDOW = 256
MAX_WAITS = 8  # times `timeouts.resend_s`: waits double while no answer arrives
FULL_WAIT_S = 0.2
Answer = tuple[SubmissionStatus, str | None]
"""The status of a submission, and the reason of a rejection."""
MAX_LABEL = 64  # characters; purpose, domain and digest take the rest of a submission id


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """How tasks are published. None: no label; for `scaffold` the run's shares, for `group_size` the run's, for `domain` each task's own, or that of
    its category in `domains`.

    Raises ArgumentError for a value that cannot be used.
    """

    purpose: Purpose = Purpose.TRAIN
    label: str | None = None
    scaffold: str | None = None
    group_size: int | None = None
    domain: str | None = None
    domains: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.label is not None and not subjects.is_submission(self.label, most=MAX_LABEL):
            raise ArgumentError(
                "label",
                f"{quoted(self.label)} cannot be part of a submission id: write at most {MAX_LABEL} letters, digits or "
                "'_:@+=/-', with single dots inside",
            )
        if self.group_size is not None and not 1 <= self.group_size <= INT2:
            raise ArgumentError(
                "group_size", f"{self.group_size} is not a number of rollouts from 1 to {INT2}"
            )
        if self.domain is not None and not is_domain(self.domain):
            raise ArgumentError("domain", f"{quoted(self.domain)} is not a valid name: use {DOMAIN_RULE}")

    def submission(self, task: Task) -> str:
        """An id made of the options and the task's content: the same task is never accepted twice under one label."""
        head = ":".join(part for part in (self.label, self.purpose, self.domain) if part)
        return f"{head}:{task.content_hash[:24]}"[:MAX_SUBMISSION]

    def event(self, task: Task, vetting: Vetting | None = None) -> tuple[str, TaskSubmitted]:
        """The task's domain and message, for `publish_tasks`. `vetting`: the task's known level, which travels with it."""
        return (
            self.domain or task.settings.metadata.domain_in(self.domains),
            TaskSubmitted(
                task=task.to_message(),
                submission=self.submission(task),
                purpose=self.purpose,
                scaffold=self.scaffold,
                group_size=self.group_size,
                label=self.label,
                vetting=vetting,
            ),
        )


def read_purpose(text: str) -> Purpose:
    """The purpose that a person writes. ArgumentError lists the known ones."""
    try:
        return Purpose(text)
    except ValueError:
        known = ", ".join(Purpose)
        raise ArgumentError("purpose", f"{quoted(text)} is unknown; known: {known}") from None


def offered_scaffold(scaffold: str, shares: Mapping[str, float], file: Path) -> str:
    """The name under which the run of `file` knows `scaffold`: registered, or in its shares; a path is searched here, then next to the file.
    A directory and the file in it that defines its scaffold are the same.

    Raises ArgumentError if it knows none.
    """
    known_here = dict.fromkeys((*known(), *shares))
    found, place = [scaffold], split_path(scaffold)
    if place is not None:
        found += [str(Path(scaffold).resolve()), str((file.parent / scaffold).resolve())]
    by_file = {file_of(name): name for name in known_here}
    for name in found:
        if name in known_here:
            return name
        if file_of(name) in by_file:
            return by_file[file_of(name)]
    if place is not None and Path(place[0]).exists():
        raise ArgumentError(
            "scaffold",
            f"{scaffold}: the run does not have it; add {json.dumps(str(Path(scaffold).resolve()))} = 0.0"
            f" to rollout.scaffolds of {file} and begin a new run, because a run keeps its scaffolds",
        )
    raise ArgumentError("scaffold", f"{quoted(scaffold)} is unknown; the run knows: {', '.join(known_here)}")


def blobs_of(tasks: Iterable[Task]) -> dict[str, Part]:
    """The blobs of all tasks together, by hex sha256."""
    found: dict[str, Part] = {}
    for task in tasks:
        found.update(task.packed.parts)
    return found


async def publish_tasks(
    bus: Bus,
    run: str,
    tasks: Sequence[tuple[str, TaskSubmitted]],
    timeout_s: float,
    tick: Callable[[int, int], object] = lambda *_: None,
    earlier: Callable[[str], object] = lambda _: None,
    *,
    blobs: Mapping[str, Part] | None = None,
    sent: Progress = lambda *_: None,
) -> dict[str, Answer]:
    """Publish (domain, event) pairs; return {submission: (status, reason)} of all answered ones. Stops after `timeout_s` without an answer. `tick`
    receives the numbers of answered and of all submissions, `earlier` each submission that was answered before. `blobs`: those that the tasks name
    (`blobs_of`); the ones that the data pool lacks are sent first. `sent` receives the bytes sent and to send.

    Blocks while the stream is full (back-pressure). Submissions without an id get sha256 of their body.
    Raises BusError when the bus does not accept a message at all, and ValueError, with nothing published, when a submission's id cannot be used
    for an answer.
    """
    open_tasks: dict[str, Outgoing] = {}
    for domain, event in tasks:
        body = encode(event)
        submission = subjects.check_submission(event.submission or sha256(body).hex())
        open_tasks[submission] = Outgoing(
            subject=subjects.tasks(run, domain),
            msg_id=f"{run}:{submission}",
            schema=event.schema(),
            body=body,
        )
    answers: dict[str, Answer] = {}
    if not open_tasks:
        return answers
    async with bus.listen(subjects.every_answer(run)) as notices:
        with anyio.move_on_after(timeout_s) as deadline_scope:

            def on_sent(done: int, total: int) -> None:
                if done:  # nothing sent is not progress
                    deadline_scope.deadline = anyio.current_time() + timeout_s
                sent(done, total)

            def on_answer(answered: int, of: int) -> None:
                deadline_scope.deadline = anyio.current_time() + timeout_s
                tick(answered, of)

            upload = partial(send_blobs, bus, blobs or {}, sent=on_sent)
            refused = await _until_answered(bus, notices, open_tasks, answers, on_answer, earlier, upload)
            if refused is not None:
                raise refused
    return answers


async def _until_answered(
    bus: Bus,
    notices: AsyncIterator[Notice],
    open_tasks: Mapping[str, Outgoing],
    answers: dict[str, Answer],
    tick: Callable[[int, int], object],
    earlier: Callable[[str], object],
    upload: Callable[..., Awaitable[None]],
) -> BusError | None:
    """Fill `answers`. Returns the error if the bus does not accept a message at all. An error of a callback is raised as it is."""
    done = anyio.Event()

    async def receive_answers() -> None:
        async for notice in notices:
            answer: SubmissionAnswered | None = None
            with apart("accepted", subject=notice.subject):  # anyone may publish to core subjects
                answer = msgspec.json.decode(notice.body, type=SubmissionAnswered)
            if answer is not None and answer.submission in open_tasks:
                if answer.earlier and answer.submission not in answers:
                    earlier(answer.submission)
                answers[answer.submission] = (answer.status, answer.reason)
                tick(len(answers), len(open_tasks))
                if len(answers) == len(open_tasks):
                    done.set()

    async with in_background(receive_answers):
        quiet_s = timeouts().resend_s
        for turn in itertools.count():
            # A new id each time: de-duplication of messages must not suppress a repeated answer.
            pending = [
                replace(message, msg_id=f"{message.msg_id}:{turn}") if turn else message
                for submission, message in open_tasks.items()
                if submission not in answers
            ]
            refused, known = await _publish_with(partial(upload, turn=turn), bus, pending, done)
            if refused is None:
                # The stream already had some of them: they may have been answered before this process listened.
                await _silence(KNOWN_RESEND_S if known else quiet_s, answers, done)
                quiet_s = (
                    timeouts().resend_s
                    if len(answers) > len(open_tasks) - len(pending)
                    else min(2 * quiet_s, MAX_WAITS * timeouts().resend_s)
                )
            if refused is not None or done.is_set():
                return refused
    raise AssertionError("turns never end")


async def _silence(quiet_s: float, answers: Mapping[str, object], done: anyio.Event) -> None:
    """Return after `quiet_s` without an answer, or once everything is answered."""
    received = -1
    while received < len(answers) and not done.is_set():
        received = len(answers)
        with anyio.move_on_after(quiet_s):
            await done.wait()


async def _publish_with(
    upload: Callable[[], Awaitable[None]], bus: Bus, messages: Sequence[Outgoing], done: anyio.Event
) -> tuple[BusError | None, bool]:
    """`_publish`, after the blobs."""
    try:
        await upload()
    except BusError as error:
        return error, False
    return await _publish(bus, messages, done)


async def _publish(bus: Bus, messages: Sequence[Outgoing], done: anyio.Event) -> tuple[BusError | None, bool]:
    """Publish page by page, waiting while the stream is full. Returns the permanent refusal, if any, and whether the bus already had a message."""
    waiting, known = list(messages), False
    while waiting and not done.is_set():
        page, waiting = waiting[:WINDOW], waiting[WINDOW:]
        full = []
        for message, result in zip(page, await bus.publish_many(page), strict=True):
            if isinstance(result, StreamFull):
                full.append(message)
            elif isinstance(result, BusError):
                return result, known
            elif not result:
                known = True
        if full:
            waiting = full + waiting
            with anyio.move_on_after(FULL_WAIT_S):
                await done.wait()
    return None, known
