"""One rollout: its task, its attempts, its steps as a tree with rewards and timings, verdicts, files, and the batch that trained on it.

This is the first part of a page: `queries.step_tree` reads the steps, `queries.steps` their texts, `queries.tokens` their tokens. Times are
seconds since the epoch, durations seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.states import ROLLOUT_TERMINAL, BatchState, FailureClass, Purpose, RolloutState
from orchestrator.pool.rows import from_row
from orchestrator.queries.attempts import RecordedReward
from orchestrator.queries.files import File, files
from orchestrator.queries.instructions import instruction_of
from orchestrator.queries.latest_reward import reward_of
from orchestrator.queries.step_tree import TreeStep, step_tree
from orchestrator.queries.texts import Cut, cut_or_none
from orchestrator.queries.timeline import (
    LOG_SHOWN,
    Change,
    Resume,
    Verdict,
    history,
    resumes,
    seconds_of,
    verdicts,
)
from orchestrator.queries.waterfall import BarKind, StepTimes, ToolTimes, WaterfallBar, step_bars, tool_bars


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One infrastructure try. `log`: of its runner; `steps`: as announced, None while it runs; `system`: what its sandbox ran
    on, the digest of an image or the runner's distribution."""

    attempt: int
    epoch: int
    runner: str | None
    scaffold: str | None
    scaffold_version: str | None
    started: float
    ended: float | None
    failure_class: FailureClass | None
    reason: str | None
    steps: int | None
    agent_s: float | None
    queued_s: float | None
    generation_s: float | None
    waiting_s: float | None
    system: str | None
    resumable: bool
    answer: Cut | None
    log: Cut | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward(RecordedReward):
    """A revision of an attempt's reward. advantage = (return − baseline) / divisor, of the first step."""

    attempt: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """Another member of the group."""

    rollout_id: int
    member: int
    state: RolloutState
    total: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUse:
    """The batch that took the rollout's group, with the values pinned then."""

    batch_no: int
    state: BatchState
    version: int | None
    trainer_version: int | None
    attempt: int
    reward_revision: int
    advantage: float
    staleness: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One try of a task. `shown`: the attempt of these steps, files, verdicts and bars; `live`: it may still change; `pruned`: the run's
    steps and messages were dropped."""

    rollout_id: int
    group_id: int
    seq: int | None
    member: int
    domain: str
    purpose: Purpose
    label: str | None
    scaffold: str
    task: str
    instruction: Cut | None
    state: RolloutState
    failure_class: FailureClass | None
    reason: str | None
    attempt: int
    shown: int
    live: bool
    seed: int
    created: float
    changed: float
    siblings: list[Sibling]
    attempts: list[Attempt]
    resumes: list[Resume]
    steps: list[TreeStep]
    reward: Reward | None
    verdicts: list[Verdict]
    files: list[File]
    batch: BatchUse | None
    bars: list[WaterfallBar]
    history: list[Change]
    pruned: bool


_HEAD = text(
    f"""SELECT r.rollout_id, r.group_id, g.seq, r.member, g.domain, g.purpose, g.label, g.scaffold, t.name AS task,
               {instruction_of("t")} AS instruction, r.state, r.failure_class, r.reason, r.attempt, r.seed,
               u.pruned IS NOT NULL AS pruned,
               {seconds_of("r.created", "r.changed")}
          FROM rollouts r JOIN groups g ON g.group_id = r.group_id JOIN tasks t ON t.task_id = g.task_id JOIN runs u ON u.run_id = r.run_id
         WHERE r.run_id = :run AND r.rollout_id = :rollout"""
)
_SIBLINGS = text(
    f"""SELECT r.rollout_id, r.member, r.state, w.total
          FROM rollouts r {reward_of("r")} WHERE r.group_id = :group ORDER BY r.member"""
)
_ATTEMPTS = text(
    f"""SELECT attempt, epoch, runner, scaffold, scaffold_version, {seconds_of("started", "ended")}, failure_class, reason, steps, agent_s,
               queued_s, generation_s, waiting_s, system, resumable, answer, log
          FROM attempts WHERE rollout_id = :rollout ORDER BY attempt"""
)
_REWARD = text(
    f"""SELECT w.revision, w.attempt, w.performance, w.speed, w.process, w.alpha, w.beta, w.total, w.t_agent, w.t_base, w.baseline, w.divisor,
               w.advantage, w.per_step, w.t_base_origin, w.process_by_signal, w.sd_log_t, w.speed_noise, w.silent, {seconds_of("w.at")}
          FROM rollouts r {reward_of("r")} WHERE r.rollout_id = :rollout AND w.revision IS NOT NULL"""
)
_BATCH = text(
    """SELECT b.batch_no, b.state, b.version, p.parent AS trainer_version, br.attempt, br.reward_revision, br.advantage
         FROM rollouts r JOIN batch_items i ON i.group_id = r.group_id AND NOT i.voided JOIN batches b ON b.batch_id = i.batch_id
         JOIN batch_rollouts br ON br.batch_id = i.batch_id AND br.rollout_id = r.rollout_id
         LEFT JOIN policy_versions p ON p.run_id = b.run_id AND p.version = b.version
        WHERE r.rollout_id = :rollout AND r.run_id = :run"""
)


async def rollout(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int | None = None
) -> Rollout:
    """One rollout, with the steps of `attempt` (default: the attempt that counts). Raises NotFoundError."""
    key: dict[str, Any] = {"run": run_id, "rollout": rollout_id}
    head = (await connection.execute(_HEAD, key)).first()
    if head is None:
        raise NotFoundError(f"rollout {rollout_id} does not exist in this run")
    attempts = [_attempt(row) for row in await connection.execute(_ATTEMPTS, {"rollout": rollout_id})]
    shown = head.attempt if attempt is None else attempt
    if attempt is not None and attempt not in {head.attempt, *(found.attempt for found in attempts)}:
        raise NotFoundError(f"rollout {rollout_id} has no attempt {attempt}: it is at attempt {head.attempt}")
    parameters = {"rollout": rollout_id}
    reward = (await connection.execute(_REWARD, parameters)).first()
    attempt_verdicts = await verdicts(connection, rollout_id)
    siblings = await connection.execute(_SIBLINGS, {"group": head.group_id})
    changes = await history(connection, run_id, rollout_id)
    steps = await step_tree(connection, {**key, "attempt": shown}, reward)
    batch = (await connection.execute(_BATCH, key)).first()
    started = next((found.started for found in attempts if found.attempt == shown), None)
    next_started = min((found.started for found in attempts if found.attempt > shown), default=inf)
    return from_row(
        Rollout,
        head,
        instruction=cut_or_none(head.instruction),
        shown=shown,
        live=head.state not in ROLLOUT_TERMINAL,
        siblings=[from_row(Sibling, row) for row in siblings],
        attempts=attempts,
        resumes=await resumes(connection, rollout_id),
        steps=steps,
        reward=_reward(reward),
        verdicts=attempt_verdicts,
        files=await files(connection, run_id, rollout_id, shown),
        batch=_batch(batch, shown, steps),
        bars=[] if started is None else _bars(started, next_started, steps, changes, attempt_verdicts, shown),
        history=changes,
    )


def _attempt(row: Row[Any]) -> Attempt:
    return from_row(Attempt, row, answer=cut_or_none(row.answer), log=cut_or_none(row.log, LOG_SHOWN))


def _reward(row: Row[Any] | None) -> Reward | None:
    if row is None:
        return None
    return from_row(Reward, row, without=("per_step",))


def _batch(row: Row[Any] | None, shown: int, steps: list[TreeStep]) -> BatchUse | None:
    """`steps`: of the attempt `shown`. Another attempt's versions do not say how stale the batch's is."""
    if row is None:
        return None
    sampled_versions = [] if row.attempt != shown else [span.version for step in steps for span in step.spans]
    staleness = (
        None
        if row.trainer_version is None or not sampled_versions
        else row.trainer_version - min(sampled_versions)
    )
    return from_row(BatchUse, row, staleness=staleness)


def _bars(
    began: float,
    until: float,
    steps: list[TreeStep],
    changes: list[Change],
    judged: list[Verdict],
    attempt: int,
) -> list[WaterfallBar]:
    """Bars of an attempt's waits and work, from its steps, its tools and the rollout's state changes. It lasts from its first lease,
    `began`, to the next attempt's, `until`; a resume is a lease of the same attempt."""
    first = max(
        (c.at for c in changes if c.to_state == RolloutState.RUNNING and c.at <= began), default=began
    )
    leases = {
        c.epoch: max(0.0, c.at - began)
        for c in changes
        if c.to_state == RolloutState.RUNNING and c.epoch is not None
    }
    bars = step_bars([_step_times(step, began) for step in steps], leases)
    last = max((bar.end for bar in bars), default=0.0)
    bars += tool_bars(_tool_times(steps))
    verified = any(verdict.attempt == attempt for verdict in judged)
    names = {
        RolloutState.REPORTED: BarKind.REPORTED,
        RolloutState.FINISHED: BarKind.VERIFY_WAIT,
        RolloutState.VERIFYING: BarKind.VERIFY,
    }
    for before, after in pairwise(changes):
        if before.to_state == RolloutState.QUEUED:
            if after.to_state == RolloutState.RUNNING and first <= after.at < until:
                bars.append(
                    WaterfallBar(
                        kind=BarKind.WAITING,
                        start=round(before.at - began, 4),
                        end=round(after.at - began, 4),
                    )
                )
        elif not first <= before.at < until:
            continue
        elif before.to_state == RolloutState.RUNNING:
            if steps and after.to_state == RolloutState.REPORTED and after.at - began > last:
                bars.append(WaterfallBar(kind=BarKind.FINISH, start=last, end=round(after.at - began, 4)))
        elif verified and before.to_state in names:
            bars.append(
                WaterfallBar(
                    kind=names[before.to_state],
                    start=round(before.at - began, 4),
                    end=round(after.at - began, 4),
                )
            )
    return sorted(bars, key=lambda bar: (bar.start, bar.end))


def _step_times(step: TreeStep, began: float) -> StepTimes:
    return StepTimes(
        idx=step.idx,
        queue=step.t_queue,
        first=step.t_first,
        generation=step.t_gen,
        gap=step.t_gap,
        recorded=step.at - began,
        ended=None if step.ended is None else step.ended - began,
        lease=step.epoch,
    )


def _tool_times(steps: Sequence[TreeStep]) -> list[ToolTimes]:
    return [
        ToolTimes(
            step=step.idx,
            call=run.call,
            name=run.name,
            start=run.start,
            end=run.end,
            exit_code=run.exit_code,
        )
        for step in steps
        for run in step.tool_runs
        if run.start is not None and run.end is not None
    ]
