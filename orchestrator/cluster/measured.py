"""A workload as a run shows it, and what `size` predicts from it held against what the run did.

Everything is read from the data pool, by a reader. A span of a run lies between two commits, or is made of several such parts; the work that
ended in it is what is measured, of groups that train. The parameters are primitive: seconds of a call, a tool, a sandbox, a verification, a
train step and of the waits between them, and their spreads. None of them is a throughput of the run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.cluster import shown
from orchestrator.cluster.size import (
    Plan,
    bytes_of_step,
    in_flight,
    plan_of_config,
    rehearsed,
    slot_s,
    train_s,
)
from orchestrator.cluster.workload import Workload, given
from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.scheduling.admission import QueueSettings

SEEDS = range(5)
LEAST_TURNS = 8  # of spans that take turns, where there are as many rounds
ROUNDS = 20  # that a rehearsal of a comparison takes, each as many batches as may be in flight


@dataclass(frozen=True, slots=True)
class Span:
    """Some time of a run: parts from one commit to another, and how many batches were committed in them, the first commit of each left out."""

    parts: tuple[tuple[datetime, datetime], ...]
    batches: int

    @property
    def since(self) -> datetime:
        return self.parts[0][0]

    @property
    def until(self) -> datetime:
        return self.parts[-1][1]

    @property
    def seconds(self) -> float:
        return sum((until - since).total_seconds() for since, until in self.parts)

    @property
    def within(self) -> str:
        """As PostgreSQL writes it: what happened at a commit belongs to the part that ends with it."""
        return (
            "{" + ",".join(f"({since.isoformat()},{until.isoformat()}]" for since, until in self.parts) + "}"
        )


@dataclass(frozen=True, slots=True)
class Held:
    """A figure as predicted and as measured."""

    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """predicted ÷ measured"""
        return self.predicted / self.measured if self.measured else float("inf")


def rounds(queue: QueueSettings) -> int:
    """Batches that may be in flight at once. They are dispatched together, and come one soon after the other: spans of a whole number of such
    rounds can be compared, others begin or end in the middle of one."""
    return max(1, in_flight(queue) // queue.batch_groups)


async def _commits(connection: AsyncConnection, run_id: int, first: int, last: int) -> list[datetime]:
    found = await connection.execute(text(shown.COMMITS), {"run": run_id, "first": first, "last": last})
    commits = [row.committed for row in found]
    if len(commits) < 3:
        raise ConfigurationError(
            f"{len(commits)} batches of this run are committed, and three at least must be: let it train first"
        )
    return commits


async def span(connection: AsyncConnection, run_id: int, first: int = 0, last: int = 1 << 30) -> Span:
    """Between the commits of two batches. ConfigurationError where fewer than three commits lie there."""
    commits = await _commits(connection, run_id, first, last)
    return Span(((commits[0], commits[-1]),), len(commits) - 1)


async def taking_turns(
    connection: AsyncConnection, run_id: int, queue: QueueSettings, first: int = 0, last: int = 1 << 30
) -> tuple[Span, Span]:
    """Two spans that take turns: the first, the second twice, the first, and again. What changes slowly, such as a machine that gets busier or a
    policy that says more, is in both alike. A turn is one round or more, so that there are four turns or, where they can be, eight or twelve.
    ConfigurationError where there are fewer rounds than four."""
    commits = await _commits(connection, run_id, first, last)
    one = rounds(queue)
    length = one * max(1, (len(commits) - 1) // one // LEAST_TURNS)
    turns = (len(commits) - 1) // length // 4 * 4
    if not turns:
        raise ConfigurationError(
            f"{len(commits)} batches are committed, and four rounds of {one} take {4 * one + 1}: let the run train longer"
        )
    parts = [(commits[turn * length], commits[(turn + 1) * length]) for turn in range(turns)]
    return (
        _joined([part for turn, part in enumerate(parts) if turn % 4 in (0, 3)], length),
        _joined([part for turn, part in enumerate(parts) if turn % 4 in (1, 2)], length),
    )


def _joined(parts: Sequence[tuple[datetime, datetime]], length: int) -> Span:
    joined: list[tuple[datetime, datetime]] = []
    for since, until in parts:
        if joined and joined[-1][1] == since:
            joined[-1] = (joined[-1][0], until)
        else:
            joined.append((since, until))
    return Span(tuple(joined), length * len(parts))


async def _one(connection: AsyncConnection, statement: str, values: dict[str, Any]) -> Any:
    return (await connection.execute(text(statement), values)).one()


async def _figure(connection: AsyncConnection, statement: str, values: dict[str, Any]) -> float:
    return max(0.0, float(await connection.scalar(text(statement), values) or 0))


def _values(run_id: int, within: Span) -> dict[str, Any]:
    return {"run": run_id, "since": within.since, "until": within.until, "within": within.within}


async def workload(
    connection: AsyncConnection, run_id: int, config: Config, within: Span
) -> tuple[Workload, float]:
    """What a span shows of the work; and how many times the mean the slowest of as many groups as may be in flight takes.
    ConfigurationError where nothing was generated in it."""
    of = _values(run_id, within)
    of["told"] = await _figure(connection, shown.TOLD, of)
    attempts, steps = await _one(connection, shown.ATTEMPTS, of), await _one(connection, shown.STEPS, of)
    if not attempts.n or not steps.tokens or not steps.generation:
        raise ConfigurationError(
            "no rollout of this run ended between its first commit and its last: let it train longer"
        )
    plan = plan_of_config(config)
    verified, trained = (
        await _one(connection, shown.VERIFICATIONS, of),
        await _one(connection, shown.TRAINING, of),
    )
    leased = await _one(connection, shown.LEASED, {**of, "slots": plan.slots})
    settled = await _one(connection, shown.SETTLED, {**of, "slots": plan.verify_slots})
    share = in_flight(plan.queue) / (in_flight(plan.queue) + 1)  # the slowest of so many, on average
    groups = await _one(connection, shown.GROUPS, {**of, "share": share})
    at_once = (await _figure(connection, shown.AT_ONCE, of) or 1) / plan.servers
    stream = float(steps.tokens) / float(steps.generation)
    path = Path(str(await connection.scalar(text(shown.NEWEST), {"run": run_id})))
    found = {
        "turns": await _figure(connection, shown.CALLS, of),
        "new_tokens": steps.tokens / steps.n,
        "added_tokens": steps.added / steps.n,
        "tool_s": float(steps.gap) / steps.n,
        "overhead_s": 0.0,
        "verify_s": float(verified.held),
        "stream_tokens_s": stream,
        "server_tokens_s": stream * max(1.0, at_once),  # at least: so many it was seen to serve
        "train_tokens_s": float(trained.merged) / max(1e-9, float(trained.busy) - float(trained.fixed)),
        "train_fixed_s": float(trained.fixed) / trained.n,
        "train_tokens": float(trained.merged) / (trained.groups * config.queue.group_size),
        "checkpoint_gb": sum(file.stat().st_size for file in path.glob("**/*") if file.is_file()) / 1e9,
        "filtered": groups.filtered / max(1, groups.filtered + groups.trained),
        "slot_cv": float(attempts.cv),
        "slot_alike": min(0.99, max(0.0, float(attempts.alike))),
        "verify_cv": float(verified.cv),
        "verify_alike": min(0.99, max(0.0, float(verified.alike))),
        "admit_s": await _figure(connection, shown.ADMITTED, of),
        "dispatch_s": max(0.0, float(leased.mean)),
        "dispatch_cv": float(leased.cv),
        "claim_s": await _figure(connection, shown.CLAIMED, of),
        "settle_s": max(0.0, float(settled.mean)),
        "settle_cv": float(settled.cv),
        "told_s": of["told"],
        "conclude_s": await _figure(connection, shown.CONCLUDED, of),
    }
    work = given({key: float(f"{value:.6g}") for key, value in found.items()}, "this run")
    busy = max(1.0, await _figure(connection, shown.HELD, of) / within.seconds)
    rest = float(f"{_rest(plan, work, busy, float(attempts.held)):.6g}")
    return work.model_copy(update={"overhead_s": rest}), float(groups.longest)


def _rest(plan: Plan, work: Workload, busy: float, held: float) -> float:
    """Seconds of a rollout in its slot that nothing else explains: with them, mean values say of this run what it did. What calls wait for each
    other is in their seconds already, and must not be counted twice."""
    rest = 0.0
    for _ in range(20):  # who rests longer waits less for others, so this comes to rest from below
        rest = max(0.0, rest + held - slot_s(plan, work.model_copy(update={"overhead_s": rest}), busy))
    return rest


async def predicted_against(
    connection: AsyncConnection, run_id: int, config: Config, *, calibrate: Span, against: Span
) -> list[Held]:
    """What `size` predicts of a run from what `calibrate` shows of its work, held against what it did in `against`.
    ConfigurationError where too little of it has happened."""
    work, _ = await workload(connection, run_id, config, calibrate)
    predicted = _predicted(plan_of_config(config), work)
    did = await done(connection, run_id, config, against)
    return [Held(name, predicted[name], measured) for name, measured in did.items() if name in predicted]


async def both_ways(
    connection: AsyncConnection, run_id: int, config: Config, first: int = 0, last: int = 1 << 30
) -> list[Held]:
    """Each of two spans that take turns from the other: geometric means of both directions, in which cancels what differs between the spans, such
    as other work on the machine. A run that is too short for it from itself. ConfigurationError where too little of it has happened."""
    whole = await span(connection, run_id, first, last)
    queue = plan_of_config(config).queue
    if whole.batches < 4 * rounds(queue):
        return await predicted_against(connection, run_id, config, calibrate=whole, against=whole)
    one, other = await taking_turns(connection, run_id, queue, first, last)
    there = await predicted_against(connection, run_id, config, calibrate=one, against=other)
    back = await predicted_against(connection, run_id, config, calibrate=other, against=one)
    return [
        Held(a.name, math.sqrt(a.predicted * b.predicted), math.sqrt(a.measured * b.measured))
        for a, b in zip(there, back, strict=True)
    ]


async def done(connection: AsyncConnection, run_id: int, config: Config, within: Span) -> dict[str, float]:
    """What a run did in a span; Postgres's bytes are of the whole run, indexes and pages that are not full included."""
    of = _values(run_id, within)
    steps, trained = await _one(connection, shown.STEPS, of), await _one(connection, shown.TRAINING, of)
    of["told"] = await _figure(connection, shown.TOLD, of)
    held = await _figure(connection, shown.HELD, of)
    stored = await connection.scalar(text(shown.STORED), {"run": run_id, "name": str(run_id)})
    return {
        "groups/min": 60 * trained.groups / within.seconds,
        "steps/s": steps.n / within.seconds,
        "completions/s of a gateway": steps.n / within.seconds / max(1, steps.gateways),
        "new tokens/s": float(steps.tokens) / within.seconds,
        "seconds of a batch in the trainer": float(trained.busy) / trained.n,
        "slots at work": held / (config.rollout.slots * within.seconds),
        "trainer at work": float(trained.busy) / within.seconds,
        "staleness, batches": await _figure(connection, shown.AGED, of),
        "bytes per step": float(stored or 0),
    }


def _predicted(plan: Plan, work: Workload) -> dict[str, float]:
    """Means over some seeds of a rehearsal; the bytes of a step by the formula."""
    batches = ROUNDS * rounds(plan.queue) + 1
    runs = [rehearsed(plan, work, batches=batches, seed=seed)[0] for seed in SEEDS]
    seconds = sum(run.seconds for run in runs)
    steps = work.turns * sum(run.rollouts for run in runs) / seconds
    return {
        "groups/min": 60 * sum(run.groups for run in runs) / seconds,
        "steps/s": steps,
        "completions/s of a gateway": steps / plan.gateways,
        "new tokens/s": steps * work.new_tokens,
        "seconds of a batch in the trainer": train_s(plan, work),
        "slots at work": sum(run.slots_busy * run.seconds for run in runs) / seconds,
        "trainer at work": sum(run.trainer_busy * run.seconds for run in runs) / seconds,
        "staleness, batches": sum(run.staleness for run in runs) / len(runs),
        "bytes per step": bytes_of_step(work),
    }
