"""Publishing tasks and waiting until each is accepted or rejected. Where nothing is answered any more, what is left is published again: the same
id is a no-op. While answers come, whoever gives them has the rest before him, and more of the same would only hold him up."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

import anyio
import msgspec

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, BusError, Notice, Outgoing, StreamFull
from orchestrator.clock import clock
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, encode
from orchestrator.contracts.ids import sha256

KNOWN_RESEND_S = 0.2
WINDOW = 256
LONGEST = 8  # times `clock.resend_s`: waits double while nobody answers
FULL_WAIT_S = 0.2


async def publish_tasks(
    bus: Bus,
    run: str,
    tasks: Sequence[tuple[str, TaskSubmitted]],
    timeout_s: float,
    tick: Callable[[int, int], None] = lambda *_: None,
    earlier: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[str, str]]:
    """Publish (domain, event) pairs; returns {submission: (status, reason)} of all that were answered, until none was for `timeout_s`. `tick`
    is told how many of how many are answered, `earlier` which submission had its answer before.

    Blocks while the stream is full (back-pressure). Submissions without an id get sha256 of their body.
    Raises BusError when the bus does not take a message at all; ValueError, and nothing is published, where a submission could not be answered
    under its id.
    """
    open_tasks: dict[str, Outgoing] = {}
    for domain, event in tasks:
        body = encode(event)
        submission = subjects.check_submission(event.submission or sha256(body).hex())
        open_tasks[submission] = Outgoing(
            subjects.tasks(run, domain), f"{run}:{submission}", event.schema(), body
        )
    answers: dict[str, tuple[str, str]] = {}
    if not open_tasks:
        return answers
    async with bus.listen(subjects.every_answer(run)) as notices:
        with anyio.move_on_after(timeout_s) as patience:

            def told(answered: int, of: int) -> None:
                patience.deadline = anyio.current_time() + timeout_s
                tick(answered, of)

            refused = await _until_answered(bus, notices, open_tasks, answers, told, earlier)
            if refused is not None:
                raise refused
    return answers


async def _until_answered(
    bus: Bus,
    notices: AsyncIterator[Notice],
    open_tasks: Mapping[str, Outgoing],
    answers: dict[str, tuple[str, str]],
    tick: Callable[[int, int], None],
    earlier: Callable[[str], None],
) -> BusError | None:
    """Fill `answers`; returns why the bus does not take a message at all."""
    done = anyio.Event()

    async def hear() -> None:
        async for notice in notices:
            try:
                answer = msgspec.json.decode(notice.body, type=SubmissionAnswered)
            except msgspec.MsgspecError:
                continue  # not ours: core subjects are open to anyone
            if answer.submission in open_tasks:
                if answer.earlier and answer.submission not in answers:
                    earlier(answer.submission)
                answers[answer.submission] = (answer.status, answer.reason)
                tick(len(answers), len(open_tasks))
                if len(answers) == len(open_tasks):
                    done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(hear)
        quiet_s = clock().resend_s
        for turn in itertools.count():
            # A new id each time: what de-duplicates messages must not keep the answer from being given again.
            pending = [
                replace(message, msg_id=f"{message.msg_id}:{turn}") if turn else message
                for submission, message in open_tasks.items()
                if submission not in answers
            ]
            refused, known = await _publish(bus, pending, done)
            if refused is None:
                # The stream had some of them: their answer may have been given before we listened.
                await _silence(KNOWN_RESEND_S if known else quiet_s, answers, done)
                quiet_s = (
                    clock().resend_s
                    if len(answers) > len(open_tasks) - len(pending)
                    else min(2 * quiet_s, LONGEST * clock().resend_s)
                )
            if refused is not None or done.is_set():
                group.cancel_scope.cancel()
                return refused
    return None


async def _silence(quiet_s: float, answers: Mapping[str, object], done: anyio.Event) -> None:
    """Return when nothing was answered for `quiet_s`, or everything is."""
    heard = -1
    while heard < len(answers) and not done.is_set():
        heard = len(answers)
        with anyio.move_on_after(quiet_s):
            await done.wait()


async def _publish(bus: Bus, messages: Sequence[Outgoing], done: anyio.Event) -> tuple[BusError | None, bool]:
    """Publish page by page, waiting while the stream is full. Returns what the bus refuses for good, and whether it knew a message."""
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
