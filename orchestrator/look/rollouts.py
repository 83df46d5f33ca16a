"""One rollout: what it was for, how each attempt went, its steps as a tree with rewards and timings, verdicts, files, and what trained on it.

Its steps come from `look.step_tree`, their texts from `look.steps`, tokens from `look.tokens`: this is what a page needs first. Times are seconds
since the epoch, durations seconds.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import ROLLOUT_TERMINAL
from orchestrator.look.files import File, files
from orchestrator.look.missing import NotThereError
from orchestrator.look.past import LOG_SHOWN, Change, Resume, Verdict, history, resumes, seconds_of, verdicts
from orchestrator.look.step_tree import Step, step_tree
from orchestrator.look.texts import Cut, cut_maybe
from orchestrator.look.waterfall import Bar, StepTimes, ToolTimes, step_bars, tool_bars


@dataclass(frozen=True, slots=True)
class Attempt:
    """One infrastructure try. `log`: what its runner said; `steps`: as announced, None while it runs."""

    attempt: int
    epoch: int
    runner: str | None
    scaffold: str | None
    scaffold_version: str | None
    started: float
    ended: float | None
    failure_class: str | None
    reason: str | None
    steps: int | None
    agent_s: float | None
    queued_s: float | None
    resumable: bool
    answer: Cut | None
    log: Cut | None


@dataclass(frozen=True, slots=True)
class Reward:
    """total = performance + beta·speed + alpha·process; advantage = (return − baseline) / divisor, of the first step."""

    revision: int
    attempt: int
    performance: float
    speed: float
    process: float
    alpha: float
    beta: float
    total: float
    t_agent: float | None
    t_base: float | None
    baseline: float | None
    divisor: float | None
    advantage: float | None
    at: float


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another member of the group."""

    rollout_id: int
    member: int
    state: str
    total: float | None


@dataclass(frozen=True, slots=True)
class BatchUse:
    """The batch that took the rollout's group, with what was pinned then."""

    batch_no: int
    state: str
    version: int | None
    trainer_version: int | None
    attempt: int
    reward_revision: int
    advantage: float
    staleness: int | None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One try of a task. `shown`: the attempt whose steps, files, verdicts and bars these are; `live`: it may still change; `pruned`: the run's steps
    and messages were dropped."""

    rollout_id: int
    group_id: int
    seq: int | None
    member: int
    domain: str
    purpose: str
    label: str | None
    scaffold: str
    task: str
    instruction: Cut | None
    state: str
    failure_class: str | None
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
    steps: list[Step]
    reward: Reward | None
    verdicts: list[Verdict]
    files: list[File]
    batch: BatchUse | None
    bars: list[Bar]
    history: list[Change]
    pruned: bool


_HEAD = text(
    f"""SELECT r.rollout_id, r.group_id, g.seq, r.member, g.domain, g.purpose, g.label, g.scaffold, t.name AS task,
               t.body -> 'files' ->> 'instruction.md' AS instruction, r.state, r.failure_class, r.reason, r.attempt, r.seed,
               u.pruned IS NOT NULL AS pruned,
               {seconds_of("r.created", "r.changed")}
          FROM rollouts r JOIN groups g ON g.group_id = r.group_id JOIN tasks t ON t.task_id = g.task_id JOIN runs u ON u.run_id = r.run_id
         WHERE r.run_id = :run AND r.rollout_id = :rollout"""
)
_SIBLINGS = text(
    """SELECT r.rollout_id, r.member, r.state,
              (SELECT w.total FROM rewards w WHERE w.rollout_id = r.rollout_id ORDER BY w.revision DESC LIMIT 1) AS total
         FROM rollouts r WHERE r.group_id = :group ORDER BY r.member"""
)
_ATTEMPTS = text(
    f"""SELECT attempt, epoch, runner, scaffold, scaffold_version, {seconds_of("started", "ended")}, failure_class, reason, steps, agent_s,
               queued_s, resumable, answer, log
          FROM attempts WHERE rollout_id = :rollout ORDER BY attempt"""
)
_REWARD = text(
    f"""SELECT revision, attempt, performance, speed, process, alpha, beta, total, t_agent, t_base, baseline, divisor, advantage, per_step,
               {seconds_of("at")}
          FROM rewards WHERE rollout_id = :rollout ORDER BY revision DESC LIMIT 1"""
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
    """One rollout, with the steps of `attempt` (by default the one that counts). Raises NotThereError."""
    key: dict[str, Any] = {"run": run_id, "rollout": rollout_id}
    head = (await connection.execute(_HEAD, key)).first()
    if head is None:
        raise NotThereError(f"there is no rollout {rollout_id} in this run")
    attempts = [_attempt(row) for row in await connection.execute(_ATTEMPTS, {"rollout": rollout_id})]
    shown = head.attempt if attempt is None else attempt
    if attempt is not None and attempt not in {head.attempt, *(found.attempt for found in attempts)}:
        raise NotThereError(f"rollout {rollout_id} has no attempt {attempt}: it is at attempt {head.attempt}")
    own = {"rollout": rollout_id}
    reward = (await connection.execute(_REWARD, own)).first()
    judged = await verdicts(connection, rollout_id)
    siblings = await connection.execute(_SIBLINGS, {"group": head.group_id})
    changes = await history(connection, run_id, rollout_id)
    steps = await step_tree(connection, {**key, "attempt": shown}, reward)
    batch = (await connection.execute(_BATCH, key)).first()
    began = next((found.started for found in attempts if found.attempt == shown), None)
    return Rollout(
        rollout_id=head.rollout_id,
        group_id=head.group_id,
        seq=head.seq,
        member=head.member,
        domain=head.domain,
        purpose=head.purpose,
        label=head.label,
        scaffold=head.scaffold,
        task=head.task,
        instruction=cut_maybe(head.instruction),
        state=head.state,
        failure_class=head.failure_class,
        reason=head.reason,
        attempt=head.attempt,
        shown=shown,
        live=head.state not in ROLLOUT_TERMINAL,
        seed=head.seed,
        created=head.created,
        changed=head.changed,
        siblings=[Sibling(*row) for row in siblings],
        attempts=attempts,
        resumes=await resumes(connection, rollout_id),
        steps=steps,
        reward=_reward(reward),
        verdicts=judged,
        files=await files(connection, run_id, rollout_id, shown),
        batch=_batch(batch, steps),
        bars=[] if began is None else _bars(began, steps, changes, judged, shown),
        history=changes,
        pruned=head.pruned,
    )


def _attempt(row: Row[Any]) -> Attempt:
    return Attempt(
        row.attempt, row.epoch, row.runner, row.scaffold, row.scaffold_version, row.started, row.ended, row.failure_class, row.reason,
        row.steps, row.agent_s, row.queued_s, row.resumable, cut_maybe(row.answer), cut_maybe(row.log, LOG_SHOWN),
    )  # fmt: skip


def _reward(row: Row[Any] | None) -> Reward | None:
    if row is None:
        return None
    return Reward(
        row.revision, row.attempt, row.performance, row.speed, row.process, row.alpha, row.beta, row.total, row.t_agent, row.t_base,
        row.baseline, row.divisor, row.advantage, row.at,
    )  # fmt: skip


def _batch(row: Row[Any] | None, steps: list[Step]) -> BatchUse | None:
    if row is None:
        return None
    made = [span.version for step in steps for span in step.spans]
    stale = None if row.trainer_version is None or not made else row.trainer_version - min(made)
    return BatchUse(
        row.batch_no, row.state, row.version, row.trainer_version, row.attempt, row.reward_revision, row.advantage, stale
    )  # fmt: skip


def _bars(
    began: float, steps: list[Step], changes: list[Change], judged: list[Verdict], attempt: int
) -> list[Bar]:
    """What the attempt waited for and did, from its steps, its tools and the rollout's changes of state."""
    bars = step_bars([StepTimes(s.idx, s.t_queue, s.t_first, s.t_gen, s.t_gap, s.at - began) for s in steps])
    last = max((bar.end for bar in bars), default=0.0)
    bars += tool_bars(
        [
            ToolTimes(step.idx, run.call, run.name, run.start, run.end, run.exit_code)
            for step in steps
            for run in step.tool_runs
            if run.start is not None and run.end is not None
        ]
    )
    verified = [verdict for verdict in judged if verdict.attempt == attempt]
    names = {"queued": "waiting", "reported": "reported", "finished": "verify_wait", "verifying": "verify"}
    for before, after in pairwise(changes):
        if before.to_state == "running" and steps and began - 1.0 <= before.at and after.at - began > last:
            if after.to_state == "reported":
                bars.append(Bar("finish", last, round(after.at - began, 4)))
            continue
        kind = names.get(before.to_state)
        if kind is None or (before.to_state == "queued") != (after.at <= began + 1.0):
            continue  # what lies before belongs to an earlier attempt, but for the wait that led to this one
        if kind != "waiting" and not verified:
            continue
        bars.append(Bar(kind, round(before.at - began, 4), round(after.at - began, 4)))
    return sorted(bars, key=lambda bar: (bar.start, bar.end))
