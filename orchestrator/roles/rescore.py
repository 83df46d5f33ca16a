"""`penstock rescore`: selects the groups to verify again, and the tests to use; the verifier runners do the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.errors import ArgumentError, ConfigurationError
from orchestrator.contracts.events import VerifyAssigned
from orchestrator.contracts.quote import cut, quoted
from orchestrator.contracts.states import RunState
from orchestrator.pool import blobs, transitions
from orchestrator.pool import rescore as pool_rescore
from orchestrator.pool.outbox import enqueue_all
from orchestrator.pool.rescore import Chosen, OpenGroup
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempts import domains, has_domain
from orchestrator.tasks.harbor import SOLUTIONS, TESTS, Task, is_hidden
from orchestrator.tasks.message import KEYS, needs_blobs, pack


@dataclass(frozen=True, slots=True)
class Rescored:
    """Numbers of groups and rollouts that are verified again, and of chosen groups left alone, by their state."""

    groups: int
    rollouts: int
    left_alone: Mapping[str, int]


async def rescore(
    connection: AsyncConnection,
    run: StoredRun,
    chosen: Chosen,
    why: str,
    corrected: Mapping[str, Task],
    *,
    of_every_task: bool = False,
) -> Rescored:
    """Have the chosen groups verified again, except those in a batch; `why` is stored with each rollout.

    `corrected` are new editions of tasks by name, which differ only in tests/ and solution/. If given, only groups of those tasks are chosen,
    including those that have not started. Raises ConfigurationError, one sentence, when the run is over, an edition is another task or
    has no name by which its groups are found; or if no group of the tasks, with `of_every_task` of any one task, can be verified again.
    """
    await transitions.lock_run(connection, run.run_id)
    if run.state is RunState.ENDED:
        raise ConfigurationError(
            f"run {quoted(run.name)} has ended: none of its groups can be trained any more"
        )
    for domain in chosen.domains:
        if not await has_domain(connection, run.run_id, domain):
            known = ", ".join(await domains(connection, run.run_id)) or "none"
            raise ArgumentError(
                "domain", f"{quoted(domain)}: run {quoted(run.name)} has none of that name; known: {known}"
            )
    if corrected:
        chosen = Chosen(chosen.domains, tuple(corrected))
    found = await pool_rescore.open_groups(connection, run.run_id, chosen)
    absent = tuple(sorted({*chosen.tasks} - {group.task for group in found}))
    await _refuse_unnamed(connection, run.run_id, [corrected[name] for name in absent if name in corrected])
    if absent and (of_every_task or not found):
        raise ConfigurationError(await _why_none(connection, run.run_id, replace(chosen, tasks=absent)))
    for name, task in corrected.items():
        await _retarget(connection, run.run_id, task, [group for group in found if group.task == name])
    reason = f"rescored: {why}"
    sent = {group.group_id: await pool_rescore.verify_again(connection, group, reason) for group in found}
    subject = subjects.work_verify(run.name, subjects.POOL_DEFAULT)
    await enqueue_all(
        connection,
        run.run_id,
        [
            (
                subject,
                VerifyAssigned(
                    run=run.name, rollout=attempt.rollout_id, attempt=attempt.attempt, epoch=attempt.epoch
                ),
            )
            for attempts in sent.values()
            for attempt in attempts
        ],
    )
    verifications = sum(map(len, sent.values()))
    await transitions.count(connection, run.run_id, "verdicts_rescored", verifications)
    return Rescored(
        sum(bool(attempts) for attempts in sent.values()),
        verifications,
        await pool_rescore.left_alone(connection, run.run_id, chosen),
    )


async def _refuse_unnamed(connection: AsyncConnection, run_id: int, absent: Sequence[Task]) -> None:
    """Raise ConfigurationError for a corrected task without open groups and without a name of its own, unless the run has it as it is."""
    unnamed = {task.content_hash: task.name for task in absent if not task.given_name}
    changed = sorted(unnamed.keys() - await pool_rescore.known(connection, run_id, unnamed))
    if changed:
        raise ConfigurationError(
            f"task {quoted(unnamed[changed[0]])} has no [metadata].name: its name is made from its content, so other tests give it another name, "
            "and no group is found by it; cancel the groups of the wrong task, and publish the corrected one with a name"
        )


async def _why_none(connection: AsyncConnection, run_id: int, chosen: Chosen) -> str:
    """Why no group of the chosen tasks can be verified again: they have ended, or none exists."""
    names = " or ".join(quoted(name) for name in chosen.tasks[:3])
    ended_groups = await pool_rescore.ended(connection, run_id, chosen)
    if not ended_groups:
        return (
            f"no training group has a task named {names}: a task is known by [metadata].name in its task.toml"
        )
    descriptions = [
        f"group {group} is {state}" + (f" ({cut(reason)})" if reason else "")
        for group, state, reason in ended_groups[:3]
    ]
    more = " and others" if len(ended_groups) > 3 else ""
    return (
        f"no open group has a task named {names}: {', '.join(descriptions)}{more}; "
        "only a group that no batch has and that has not ended is judged again, so publish the task again under another label"
    )


async def _retarget(connection: AsyncConnection, run_id: int, task: Task, found: list[OpenGroup]) -> None:
    for group in found:
        if changed := _changed(group.body, task):
            raise ConfigurationError(
                f"{changed} of task {quoted(task.name)} is not what the policy was given: tests and solution may be fixed, the rest is "
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
        absent = await blobs.name(connection, task.packed.parts)
        for sha in sorted(absent):
            await blobs.store(connection, {sha: task.packed.parts[sha].read()})
        await pool_rescore.retarget(connection, run_id, [group.group_id for group in found], row)


def _changed(was: dict[str, Any], now: Task) -> str | None:
    """The first entry visible to the policy or its environment in which the editions differ. `was` is a packed task."""
    if needs_blobs(was):  # its directories are trees, that of its steps with their tests and solutions
        earlier, later = _seen(was), _seen(pack(now.bundle, inline=False).message)
    else:
        earlier, later = _seen(_shown(Task.from_message(was))), _seen(_shown(now))
    return next((path for _, path in sorted({*earlier, *later}) if _differs(earlier, later, path)), None)


def _shown(task: Task) -> dict[str, Any]:
    """The message, with blobs, of what a policy sees."""
    files = {path: file for path, file in task.files.items() if not is_hidden(path)}
    return pack(replace(task.bundle, files=files), inline=False).message


def _differs(earlier: Mapping[tuple[str, str], Any], later: Mapping[tuple[str, str], Any], path: str) -> bool:
    return any(earlier.get((key, path)) != later.get((key, path)) for key in KEYS)


def _seen(message: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """The entries of a message with blobs, by key and path: a directory is one tree. Tests and solution are left out."""
    hidden = (TESTS.rstrip("/"), SOLUTIONS.rstrip("/"))
    return {
        (key, path): entry
        for key, entries in message.items()
        for path, entry in entries.items()
        if path.partition("/")[0] not in hidden
    }
