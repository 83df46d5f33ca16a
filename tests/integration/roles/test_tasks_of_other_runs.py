"""A task for another run of the same database is judged as that run's own orchestrator judges it: by the process keys of its newest start."""

import json
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.app import keep_own_values, open_context
from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.roles.intake import Intake
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.roles.rig import TASK, Stage, playing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

COMPOSE = "services:\n  main: {}\n  db:\n    image: postgres:16\n"
SERVICES = {"files": {**TASK["files"], "environment/docker-compose.yaml": COMPOSE}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`later`: sections of the file of a run that began without them; `sent`: a task that only the file takes, and `refusal`: why the run's
    first start refuses it."""

    later: dict[str, dict[str, Any]]
    sent: dict[str, Any]
    refusal: str


CASES = {
    "slots": Case(
        later={"rollout": {"slots": 64}},
        sent={"task": TASK, "group_size": 20},
        refusal="group_size is 20, but only 8 rollouts run at once",
    ),
    "provider": Case(
        later={"sandbox": {"provider": "container"}},
        sent={"task": SERVICES},
        refusal="has the services db, which the provider bubblewrap does not run",
    ),
}


async def _answer(stage: Stage, run: str, submission: str, sent: dict[str, Any]) -> tuple[str, str]:
    """(status, reason) that the orchestrator of the stage gives to a task for `run`."""
    body = json.dumps({"submission": submission, **sent}).encode()
    async with stage.bus.listen(subjects.every_answer(run)) as notices:
        await stage.bus.publish(
            Outgoing(subject=subjects.tasks(run, "coding"), msg_id="", schema="", body=body)
        )
        with anyio.fail_after(60):
            async for notice in notices:
                answer = json.loads(notice.body)
                if answer["submission"] == submission:
                    return answer["status"], answer.get("reason", "")
    raise AssertionError("no answer came")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_task_is_judged_by_the_file_of_the_newest_start_of_its_run(
    stage: Stage, engine: AsyncEngine, database_url: str, case: Case
) -> None:
    services = {"database_url": database_url, "nats_url": stage.url}
    began = Config.model_validate({"run": {"name": f"b{stage.run.name[1:]}"}, "services": services})
    now = Config.model_validate({"run": {"name": began.run.name}, "services": services, **case.later})
    await builders.make_run(engine, began)
    async with playing([Intake(stage.context, ["shell"]).run]):
        for number, (config, accepted) in enumerate(((None, False), (now, True), (began, False))):
            if config is not None:
                async with open_context(config) as context:
                    await keep_own_values(context)
            status, reason = await _answer(stage, began.run.name, f"{number}", case.sent)
            assert (status == "accepted") == accepted, reason
            assert accepted or case.refusal in reason
