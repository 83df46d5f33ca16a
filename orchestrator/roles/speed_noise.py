"""The measurement of the speed noise: replays of one recorded rollout, submitted when a group succeeds, read when they have ended.

    group with successes → its member of median time → its replies as a script → one group of replays → a row of speed_noise

A replay runs the same scaffold on the same task in a fresh sandbox, in parallel with the run's other work. Its completions are generated, with
as many tokens as were recorded, and discarded: the scaffold gets the recorded replies, so that every replay does the same work.
All of it happens in the transactions that conclude groups, without a separate loop. A crash repeats nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.marks import ParseStatus
from orchestrator.contracts.states import FailureClass, Purpose, RunState
from orchestrator.pool import speed_noise
from orchestrator.pool.groups import GroupMember, TerminalGroup
from orchestrator.pool.runs import state_of
from orchestrator.pool.steps import StepReading
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.rewards.noise import MIN_REPLAYS, replay_noise
from orchestrator.runtime.log import get
from orchestrator.settings.config import Config
from orchestrator.tasks.harbor import SCRIPT
from orchestrator.tasks.message import MAX_MESSAGE_BYTES, hash_of

log = get(__name__)

LABEL: Final = "speed-noise"


async def measure(connection: AsyncConnection, run_id: int, config: Config, group: TerminalGroup) -> None:
    """Submit the replays of a member of `group`, if a measurement of its scaffold is due and a member can be replayed."""
    if group.purpose is not Purpose.TRAIN or not config.reward.measures_noise:
        return
    source = chosen(group.members)
    if source is None or await state_of(connection, run_id) is not RunState.ACTIVE:
        return
    if not await speed_noise.due(connection, run_id, group.scaffold, config.reward.noise_interval_s):
        return
    task = await speed_noise.task_of(connection, group.group_id)
    body = _with_script(task.body, script_of(source.steps))
    if len(json.dumps(body)) > MAX_MESSAGE_BYTES:
        log.info(
            "speed_noise.left_out", rollout=source.rollout_id, error="the script makes the task too large"
        )
        return
    submission = f"{LABEL}:{source.rollout_id}"
    seed = int.from_bytes(sha256(f"{config.run.seed}:{submission}".encode())[:8], "big") >> 2
    answer = await accept(
        connection,
        run_id,
        NewGroup(
            submission=submission,
            task_sha=bytes.fromhex(hash_of(body)),
            task_name=task.name,
            domain=group.domain,
            settings=task.settings,
            body=body,
            purpose=Purpose.RECORD,
            scaffold=group.scaffold,
            size=max(MIN_REPLAYS, config.reward.noise_replays),
            seed=seed,
            label=LABEL,
            pool=subjects.POOL_EVAL,
        ),
    )
    if answer.new:
        await speed_noise.begin(connection, run_id, submission, group.scaffold, source.rollout_id)


async def conclude_measurement(connection: AsyncConnection, group: TerminalGroup) -> None:
    """Store the noise of the replays, if `group` is a measurement and enough replays followed the recording."""
    if group.purpose is not Purpose.RECORD:
        return
    if await speed_noise.source_of(connection, group.group_id) is None:
        return
    turns = max((len(_conversation(member.steps)) for member in group.members), default=0)
    seconds = [
        member.agent_s
        for member in group.members
        if member.failure in (FailureClass.COMPLETED, FailureClass.POLICY_FAILURE)
        and len(_conversation(member.steps)) == turns
    ]
    noise = replay_noise(seconds)
    if noise is None:
        log.warning("speed_noise.no_result", group=group.group_id, replays=len(seconds))
        return
    await speed_noise.finish(connection, group.group_id, noise)
    log.info("speed_noise.measured", group=group.group_id, scaffold=group.scaffold, sd_log_t=noise.sd_log_t)


def chosen(members: Sequence[GroupMember]) -> GroupMember | None:
    """The successful member of median time among those whose replies a script can replay; None: there is none."""
    candidates = sorted(
        (member for member in members if member.performance and _sayable(member.steps)),
        key=lambda member: member.agent_s,
    )
    return candidates[len(candidates) // 2] if candidates else None


def script_of(steps: Sequence[StepReading]) -> list[dict[str, Any]]:
    """The recorded replies as a script of generated replies."""
    return [{**_reply(step.reply), "generate": True} for step in _conversation(steps)]


def _conversation(steps: Sequence[StepReading]) -> list[StepReading]:
    """The steps that advanced the scaffold; marked steps did not."""
    return [step for step in steps if not step.marks]


def _sayable(steps: Sequence[StepReading]) -> bool:
    conversation = _conversation(steps)
    return bool(conversation) and all(step.parse is ParseStatus.OK for step in conversation)


def _reply(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {key: reply.get(key) for key in ("content", "reasoning", "tool_calls")}


def _with_script(message: Mapping[str, Any], script: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**message, "files": {**message.get("files", {}), SCRIPT: json.dumps(script)}}
