"""Text of any kind and length in every field of the notices: gateways and publishers live, and take the next true one."""

from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import PolicyPublished, SubmissionAnswered, TaskSubmitted, decode
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.targets import TargetVersion, announcements
from orchestrator.pool.policy_versions import newest_version
from orchestrator.publish import publish_tasks
from orchestrator.roles.intake import Intake
from tests.integration.roles.rig import TASK, Stage, playing, staged, until
from tests.integration.roles.test_poison import Cases, bodies, send

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url) as stage:
        yield stage


def refused(body: bytes, run: str) -> bool:
    """Whether an announcement is: it cannot be read, or is another run's."""
    try:
        return decode(body, None, PolicyPublished).run != run
    except MessageError:
        return True


async def test_an_announcement_with_any_text_anywhere_is_counted_if_it_is_false_and_the_next_one_is_followed(
    stage: Stage, cases: Cases
) -> None:
    """An announcement of a version is never trusted, so a path of any text changes nothing."""
    run, metrics = stage.run.name, GatewayMetrics()
    await stage.serves(3)
    target = TargetVersion(stage.context.engine, stage.run.run_id, newest_version, poll_interval_s=3600.0)
    good = PolicyPublished(run=run, version=9, path="/nowhere", manifest_sha="0" * 64, batch_no=1, revision=9)
    sent = bodies(good)
    false = 0
    async with playing([partial(announcements, target, stage.bus, run, metrics)]):
        for body in sent:
            await send(stage, subjects.policy(run), good, body)
            if refused(body, run):
                false += 1
                # The stream keeps only the newest message.
                await until(partial(counted, metrics, false))
        await stage.serves(4)
        await stage.send(subjects.policy(run), good)
        with anyio.fail_after(120):
            while target.version is None or target.version.version != 4:
                await target.changed.wait()
    assert await counted(metrics, false) and len(sent) // 2 < false < len(sent)
    cases(len(sent))


async def counted(metrics: GatewayMetrics, n: int) -> bool:
    return metrics.registry.get_sample_value("penstock_gateway_announcements_refused_total") == n


async def test_an_answer_with_any_text_anywhere_is_dropped_and_the_publisher_takes_the_true_one(
    stage: Stage, cases: Cases
) -> None:
    run = stage.run.name
    good = SubmissionAnswered(submission="another", status=SubmissionStatus.REJECTED, reason="r")
    sent = bodies(good)
    answers: dict[str, tuple[str, str | None]] = {}
    submitted = TaskSubmitted(task=TASK, submission="next")

    async def publish() -> None:
        answers.update(await publish_tasks(stage.bus, run, [("coding", submitted)], timeout_s=120.0))

    async with stage.connect() as other, anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        async with other.subscribe(subjects.consume_tasks()) as arriving:
            [delivery] = await arriving.take(1)  # so the publisher listens
            await delivery.nak()
        for body in sent:
            await stage.bus.notify(subjects.accepted(run, "next"), body)
        async with playing([Intake(stage.context, ["shell"]).run]):
            await stage.reaches(1, "submissions", submission="next", status="accepted")
            await until(lambda: answered(answers))
    assert answers == {"next": (SubmissionStatus.ACCEPTED, None)}
    cases(len(sent))


async def answered(answers: dict[str, tuple[str, str | None]]) -> bool:
    return bool(answers)
