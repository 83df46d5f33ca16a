"""`penstock rescore`: which groups are judged anew, with which tests; the verifier runners do the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.events import VerifyAssigned
from orchestrator.pool import history
from orchestrator.pool import rescore as pool_rescore
from orchestrator.pool.outbox import owe_all
from orchestrator.pool.rescore import Chosen, OpenGroup
from orchestrator.pool.runs import Run
from orchestrator.tasks.harbor import SOLUTIONS, TESTS, Task


@dataclass(frozen=True, slots=True)
class Rescored:
    """Groups and rollouts that are judged anew, and the chosen groups that were left alone, by their state."""

    groups: int
    rollouts: int
    left_alone: Mapping[str, int]


async def rescore(
    connection: AsyncConnection, run: Run, chosen: Chosen, why: str, mended: Mapping[str, Task]
) -> Rescored:
    """Have the chosen groups that no batch has judged anew; `why` is kept with each rollout.

    `mended` are new editions of tasks by name, which differ in tests/ and solution/ alone; where given, only groups of those tasks
    are chosen, also those that have not begun. Raises ConfigurationError, one sentence, when the run is over or an edition is
    another task.
    """
    await history.lock_run(connection, run.run_id)
    if run.state == "ended":
        raise ConfigurationError(f"run {run.name!r} has ended: none of its groups can be trained any more")
    if mended:
        chosen = Chosen(chosen.domains, tuple(mended))
    found = await pool_rescore.open_groups(connection, run.run_id, chosen)
    if mended and not found:
        raise ConfigurationError(
            f"no open group has a task named {' or '.join(mended)}: an edition is known by [metadata].name in its task.toml"
        )
    for name, task in mended.items():
        await _retarget(connection, run.run_id, task, [group for group in found if group.task == name])
    reason = f"rescored: {why}"
    sent = {group.group_id: await pool_rescore.verify_anew(connection, group, reason) for group in found}
    subject = subjects.work_verify(run.name, subjects.POOL_DEFAULT)
    await owe_all(
        connection,
        run.run_id,
        [
            (
                subject,
                VerifyAssigned(run=run.name, rollout=each.rollout_id, attempt=each.attempt, epoch=each.epoch),
            )
            for anew in sent.values()
            for each in anew
        ],
    )
    again = sum(map(len, sent.values()))
    await history.count(connection, run.run_id, "verdicts_rescored", again)
    return Rescored(
        sum(bool(anew) for anew in sent.values()),
        again,
        await pool_rescore.left_alone(connection, run.run_id, chosen),
    )


async def _retarget(connection: AsyncConnection, run_id: int, task: Task, found: list[OpenGroup]) -> None:
    for group in found:
        if changed := _changed(Task.from_message(group.body), task):
            raise ConfigurationError(
                f"{changed} of task {task.name!r} is not what the policy was given: tests and solution may be mended, the rest is "
                "another task"
            )
    if found:
        row = {
            "sha": bytes.fromhex(task.content_hash),
            "name": task.name,
            "domain": task.settings.metadata.domain,
            "settings": task.settings.model_dump(mode="json"),
            "body": task.to_message(),
        }
        await pool_rescore.retarget(connection, run_id, [group.group_id for group in found], row)


def _changed(was: Task, now: Task) -> str | None:
    """The first file, of those that the policy or its environment saw, that the editions do not share."""
    before, after = _seen(was), _seen(now)
    return next((path for path in sorted({*before, *after}) if before.get(path) != after.get(path)), None)


def _seen(task: Task) -> dict[str, bytes]:
    return {path: body for path, body in task.files.items() if not path.startswith((TESTS, SOLUTIONS))}
