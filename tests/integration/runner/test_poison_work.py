"""Text of any kind and length in every field of an assignment: the runners live, each assignment gets its reason, and the next one is done."""

from pathlib import Path

import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.events import RolloutAssigned, VerifyAssigned
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.roles.dead_letters import store_dead_letters
from tests.integration.roles.test_poison import Cases, bodies
from tests.integration.runner.rig import a_task, open_rig, runs, says

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]

LETTERS = "SELECT count(*) AS n, count(*) FILTER (WHERE reason <> '') AS given FROM dead_letters WHERE stream = 'WORK'"


async def test_an_assignment_with_any_text_anywhere_gets_its_reason_and_the_next_one_is_done(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path, cases: Cases
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, lease_ttl_s=30.0) as rig:
        run = rig.context.run
        work = {
            subjects.work_rollout(run): RolloutAssigned(run=run, rollout=1, attempt=1, epoch=1),
            subjects.work_verify(run): VerifyAssigned(run=run, rollout=1, attempt=1, epoch=1),
        }
        sent = [
            Outgoing(subject=subject, msg_id=f"{subject}:{n}", schema=event.schema(), body=body)
            for subject, event in work.items()
            for n, body in enumerate(bodies(event))
        ]
        for message in sent:
            await rig.context.bus.publish(message)
        rig.tasks.start_soon(store_dead_letters, rig.context)
        rig.start_runner()
        rig.start_verifier()
        await rig.until(LETTERS, lambda row: row.n == row.given == len(sent))
        rollout = await rig.submit(a_task(runs("echo done > out"), says("done")), pool="default")
        assert await rig.verdict(rollout) == 1.0
    cases(len(sent))
