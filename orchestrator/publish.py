"""Publishing tasks and waiting until each is accepted or rejected. What is not answered is published again: the same id is a no-op."""

from collections.abc import Sequence

import anyio
import msgspec

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, Outgoing, StreamFull
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, encode
from orchestrator.contracts.ids import sha256

RESEND_S = 5.0
WINDOW = 256


async def publish_tasks(
    bus: Bus, run: str, tasks: Sequence[tuple[str, TaskSubmitted]], timeout_s: float
) -> dict[str, tuple[str, str]]:
    """Publish (domain, event) pairs; returns {submission: (status, reason)} of all that were answered within `timeout_s`.

    Blocks while the stream is full (back-pressure). Submissions without an id get sha256 of their body.
    """
    open_tasks: dict[str, Outgoing] = {}
    for domain, event in tasks:
        body = encode(event)
        submission = event.submission or sha256(body).hex()
        open_tasks[submission] = Outgoing(
            subjects.tasks(run, domain), f"{run}:{submission}", event.schema(), body
        )
    answers: dict[str, tuple[str, str]] = {}
    wanted = set(open_tasks)
    done = anyio.Event()
    if not wanted:
        return answers
    async with bus.listen(f"accepted.{subjects.check_name('run', run)}.>") as notices:
        with anyio.move_on_after(timeout_s):
            async with anyio.create_task_group() as group:

                async def hear() -> None:
                    async for notice in notices:
                        try:
                            answer = msgspec.json.decode(notice.body, type=SubmissionAnswered)
                        except msgspec.MsgspecError:
                            continue  # not ours: core subjects are open to anyone
                        if answer.submission in wanted:
                            answers[answer.submission] = (answer.status, answer.reason)
                            if len(answers) == len(wanted):
                                done.set()

                group.start_soon(hear)
                first = True
                while not done.is_set():
                    pending = [m for s, m in open_tasks.items() if s not in answers]
                    for i in range(0, len(pending), WINDOW):
                        page = pending[i : i + WINDOW]
                        if not first:  # the window of message ids must not hide a message that got lost
                            page = [Outgoing(m.subject, f"{m.msg_id}:again", m.schema, m.body) for m in page]
                        for result in await bus.publish_many(page):
                            if isinstance(result, StreamFull):
                                await anyio.sleep(0.2)
                            elif isinstance(result, Exception):
                                raise result
                    first = False
                    with anyio.move_on_after(RESEND_S):
                        await done.wait()
                group.cancel_scope.cancel()
    return answers
