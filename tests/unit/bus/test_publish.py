"""Many tasks and an orchestrator that is slow, or silent: what is published again, and when the rest is given up."""

from collections.abc import Sequence

import anyio
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, Outgoing
from orchestrator.bus.memory import MemoryBus
from orchestrator.clock import Clock, ticking
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, encode
from orchestrator.publish import publish_tasks

pytestmark = pytest.mark.anyio

TASKS = [("coding", TaskSubmitted(task={}, submission=f"s{n}")) for n in range(12)]


class CountingBus(MemoryBus):
    """How many tasks were published at each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[int] = []

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        self.turns.append(len(messages))
        return await super().publish_many(messages)

    async def answer(self, submission: str) -> None:
        """As the orchestrator does."""
        said = SubmissionAnswered(submission=submission, status="accepted", reason="")
        await self.notify(subjects.accepted("run", submission), encode(said))


async def test_while_answers_come_nothing_is_published_again_and_nothing_given_up() -> None:
    bus = CountingBus()

    async def slowly() -> None:
        for _, task in TASKS:
            await anyio.sleep(0.3)  # all of them take longer than anybody's patience
            await bus.answer(task.submission or "")

    with ticking(Clock(resend_s=3.0)):
        async with anyio.create_task_group() as group:
            group.start_soon(slowly)
            answers = await publish_tasks(bus, "run", TASKS, 3.3)
    assert len(answers) == len(TASKS) and bus.turns == [len(TASKS)]


async def test_what_nobody_answers_is_published_again_less_and_less_often_until_it_is_given_up() -> None:
    bus = CountingBus()
    with ticking(Clock(resend_s=0.2)):
        began = anyio.current_time()
        assert await publish_tasks(bus, "run", TASKS, 2.5) == {}
        assert anyio.current_time() - began >= 2.5
    assert 2 <= len(bus.turns) <= 4 and set(bus.turns) == {len(TASKS)}  # after 0.2, 0.6 and 1.4 s


@pytest.mark.parametrize(
    "submission", ["my suite:7", "a*", "a.>", "a..b", ".a", "a.", "tab\there", "nul\0", "ümlaut", "x" * 129]
)
async def test_a_submission_that_nobody_could_be_answered_under_is_refused_at_once_and_nothing_is_published(
    submission: str,
) -> None:
    bus = CountingBus()
    tasks = [*TASKS, ("coding", TaskSubmitted(task={}, submission=submission))]
    with anyio.fail_after(5):
        with pytest.raises(
            ValueError, match=r"^the submission id .* cannot be used: write 1 to 128 "
        ) as refused:
            await publish_tasks(bus, "run", tasks, 60.0)
    assert "\n" not in str(refused.value) and bus.turns == []
