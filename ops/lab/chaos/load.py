"""The client that keeps the run busy. It records every submission before it publishes it, and publishes it again until it is answered.

| produces | waits for | unblocked by |
|---|---|---|
| submissions | fewer than LOW waiting groups | the dispatcher |
| the same submissions again | an answer, while NATS or the orchestrator is down | their return |
"""

from collections.abc import Sequence
from pathlib import Path

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.lab.chaos.ledger import SUBMISSIONS, Ledger, lines
from ops.lab.chaos.poison import agents
from ops.lab.chaos.prepare import HARNESS
from ops.lab.chaos.watch import AWAY
from orchestrator.bus.base import BusError
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.publish import publish_tasks
from orchestrator.tasks.harbor import Task

LOW, PAGE = 8, 8  # groups
ANSWER_S = 5.0
DOMAIN = "general"
OPEN = """select count(*) from groups where run_id = :run and state = 'accepted'"""
# A random reward: every group has a learning signal, independent of the policy.
TEST = b"mkdir -p /logs/verifier; printf '0.%05d' $RANDOM > /logs/verifier/reward.txt\n"


def a_task(number: int) -> Task:
    """The task of this number. The same number gives the same bytes, so publishing it again is the same submission."""
    return Task.from_files(
        {
            "task.toml": f'[metadata]\ndomain = "{DOMAIN}"\n'.encode(),
            "instruction.md": f"Say {number}.".encode(),
            "tests/test.sh": TEST,
        }
    )


def event_of(submission: str) -> tuple[str, TaskSubmitted]:
    """The event to publish for a line of the ledger."""
    if submission.startswith(agents.PREFIX):
        return DOMAIN, agents.event_of(submission, DOMAIN, str(HARNESS.resolve()))
    number = int(submission.removeprefix("chaos:"))
    return DOMAIN, TaskSubmitted(task=a_task(number).to_message(), submission=submission)


class SubmittedLoad:
    """`refused` names rejected submissions: it must stay empty while the intake is open."""

    def __init__(self, *, nats_url: str, run: str, run_id: int, engine: AsyncEngine, ledger: Ledger) -> None:
        self._nats_url, self._run, self._run_id = nats_url, run, run_id
        self._engine, self._ledger = engine, ledger
        known = lines(Path(ledger.directory) / SUBMISSIONS)
        self._next = len(known)
        self._pending = known  # of an interrupted run: the ledger does not record whether they were answered
        self._more: list[str] = []
        self.refused: list[str] = []
        self._done = anyio.Event()
        self._last = False

    async def run(self) -> None:
        """Publish until `close` was called and every submission is answered."""
        while True:
            try:
                async with NatsBus.connect(self._nats_url, name="chaos-client") as bus:
                    while True:
                        await self._publish(bus)
                        if self._more:
                            self._pending, self._more = self._more, []
                            continue
                        if self._last and not self._pending:
                            self._done.set()
                            return
                        if not self._last and await self._waiting() < LOW:
                            self._pending = [f"chaos:{self._next + n:06d}" for n in range(PAGE)]
                            self._next += PAGE
                            self._ledger.submits(self._pending)
                        else:
                            await anyio.sleep(0.1)
            except (BusError, OSError):
                await anyio.sleep(0.2)  # NATS is down

    async def _publish(self, bus: NatsBus) -> None:
        while self._pending:
            page = self._pending[:64]
            answers = await publish_tasks(
                bus, self._run, [event_of(submission) for submission in page], ANSWER_S
            )
            self.refused += [
                submission
                for submission, (status, _) in answers.items()
                if status is not SubmissionStatus.ACCEPTED
            ]
            self._pending = [submission for submission in self._pending if submission not in answers]

    async def _waiting(self) -> int:
        try:
            async with self._engine.connect() as connection:
                return int(await connection.scalar(text(OPEN), {"run": self._run_id}) or 0)
        except AWAY:  # nothing is known
            return LOW

    @property
    def published(self) -> int:
        """The number of submissions so far, over all starts of the run."""
        return self._next

    def also(self, submissions: Sequence[str]) -> None:
        """Publish these soon, too."""
        self._ledger.submits(submissions)
        self._more += submissions
        self._next += len(submissions)

    async def close(self) -> None:
        """Publish nothing new; returns when every published submission is answered."""
        self._last = True
        await self._done.wait()
