"""Many tasks and an orchestrator that is slow, or silent: which tasks are published again, and when the rest is abandoned."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

from orchestrator.blobs.send import missing_blobs
from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, Outgoing
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted, encode
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.publish import publish_tasks
from orchestrator.settings.timeouts import Timeouts, use
from tests import virtual_time
from tests.memory_bus import MemoryBus
from tests.virtual_time import passes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, Mapping[str, Any]]:
    return virtual_time.BACKEND


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
        """Answers as the orchestrator does."""
        message = SubmissionAnswered(submission=submission, status=SubmissionStatus.ACCEPTED)
        await self.notify(subjects.accepted("run", submission), encode(message))


async def test_while_answers_come_nothing_is_published_again_and_nothing_given_up() -> None:
    bus = CountingBus()

    async def slowly() -> None:
        for _, task in TASKS:
            await passes(0.3)  # all of them together take longer than the patience for an answer
            await bus.answer(task.submission or "")

    with use(Timeouts(resend_s=3.0)):
        async with anyio.create_task_group() as group:
            group.start_soon(slowly)
            answers = await publish_tasks(bus, "run", TASKS, 3.3)
    assert len(answers) == len(TASKS) and bus.turns == [len(TASKS)]


async def test_an_unanswered_task_is_published_again_less_and_less_often_until_it_is_given_up() -> None:
    bus = CountingBus()
    with use(Timeouts(resend_s=0.2)):
        began = anyio.current_time()
        assert await publish_tasks(bus, "run", TASKS, 2.5) == {}
        assert anyio.current_time() - began == pytest.approx(2.5)
    assert bus.turns == [len(TASKS)] * 4  # at once, after 0.2, 0.6 and 1.4 s


@pytest.mark.parametrize(
    "submission", ["my suite:7", "a*", "a.>", "a..b", ".a", "a.", "tab\there", "nul\0", "ümlaut", "x" * 129]
)
async def test_a_submission_id_that_cannot_be_answered_is_refused_at_once_and_nothing_is_published(
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


OWN = [ValueError("mine"), TimeoutError("mine"), BusError("mine"), pytest.fail.Exception("mine")]


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("callback", ["tick", "earlier", "sent"])
async def test_an_error_of_a_callback_comes_out_as_it_is(callback: str, error: BaseException) -> None:
    bus = CountingBus()

    async def answered_before() -> None:
        await passes(0.3)
        message = SubmissionAnswered(submission="s0", status=SubmissionStatus.ACCEPTED, earlier=True)
        await bus.notify(subjects.accepted("run", "s0"), encode(message))

    def fails(*_: object) -> None:
        raise error

    async with anyio.create_task_group() as group:
        group.start_soon(answered_before)
        with pytest.raises(type(error)) as caught:
            await publish_tasks(bus, "run", TASKS, 60.0, **{callback: fails})  # type: ignore[arg-type]
    assert caught.value is error


async def test_a_cancelled_publisher_ends_at_once_and_without_an_error() -> None:
    began = anyio.current_time()
    with anyio.move_on_after(0.5) as scope:
        await publish_tasks(CountingBus(), "run", TASKS, 60.0)
    assert scope.cancelled_caught and anyio.current_time() - began == pytest.approx(0.5)


ODD = [b"", b"\xff", b"7", b"[[]]", b"[" * 100_000, b'{"later":' * 100_000, b'{"submission": 7}']


async def test_answers_of_any_bytes_are_dropped_and_the_publisher_takes_the_next_ones() -> None:
    bus = CountingBus()

    async def answers() -> None:
        for body in ODD:
            await passes(0.1)
            await bus.notify(subjects.accepted("run", "odd"), body)
        for _, task in TASKS:
            await bus.answer(task.submission or "")

    async with anyio.create_task_group() as group:
        group.start_soon(answers)
        assert len(await publish_tasks(bus, "run", TASKS, 60.0)) == len(TASKS)


async def test_answers_of_any_bytes_about_blobs_are_dropped_and_the_next_one_counts() -> None:
    bus = MemoryBus()

    async def answers() -> None:
        async with bus.listen(subjects.every_blobs_wanted()) as questions:
            async for question in questions:
                where = subjects.blobs_missing(question.subject.partition(".")[2])
                for body in (*(each for each in ODD if not each.startswith(b'{"submission')), b'["b"]'):
                    await bus.notify(where, body)

    async with anyio.create_task_group() as group:
        group.start_soon(answers)
        await anyio.wait_all_tasks_blocked()
        assert await missing_blobs(bus, ["a", "b"]) == {"b"}
        group.cancel_scope.cancel()
