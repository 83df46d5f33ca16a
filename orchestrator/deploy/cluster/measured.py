"""A workload measured from a run, and the prediction of `size` for it compared with the run.

Everything is read from the data pool, by a reader. A span of a run is between two commits, or consists of several such parts. The measured
work is the work that ended in it, of groups that train. The parameters are primitive: seconds of a call, a tool, a sandbox, a verification, a
train step and of the waits between them, and their spreads. None of them is a throughput of the run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.size import (
    Plan,
    bytes_of_step,
    plan_of_config,
    rehearsed,
    slot_s,
    train_s,
)
from orchestrator.deploy.cluster.workload import Workload, given
from orchestrator.queries.workload_figures import (
    Span,
    commit_times,
    throughput_figures,
    work_figures,
)
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.settings.config import Config

SEEDS = range(5)
MIN_TURNS = 8  # of alternating spans, if there are as many rounds
ROUNDS = 20  # of a comparison's rehearsal, each with as many batches as may be in flight


@dataclass(frozen=True, slots=True)
class Held:
    """A figure, predicted and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """predicted ÷ measured"""
        return self.predicted / self.measured if self.measured else float("inf")


def rounds(queue: QueueSettings) -> int:
    """Batches that may be in flight at once. They are dispatched together, and arrive in quick succession. Spans with a whole number of such
    rounds can be compared; others start or end in the middle of a round."""
    return max(1, queue.places // queue.batch_groups)


async def _commits(connection: AsyncConnection, run_id: int, first: int, last: int) -> list[datetime]:
    commits = await commit_times(connection, run_id, first, last)
    if len(commits) < 3:
        raise ConfigurationError(
            f"{len(commits)} batches of this run are committed, and three at least must be: let it train first"
        )
    return commits


async def span(connection: AsyncConnection, run_id: int, first: int = 0, last: int = 1 << 30) -> Span:
    """The span between the commits of two batches. ConfigurationError if it has fewer than three commits."""
    commits = await _commits(connection, run_id, first, last)
    return Span(((commits[0], commits[-1]),), len(commits) - 1)


async def taking_turns(
    connection: AsyncConnection, run_id: int, queue: QueueSettings, first: int = 0, last: int = 1 << 30
) -> tuple[Span, Span]:
    """Two alternating spans: the first, the second twice, the first, and again. Slow changes, such as a machine that gets busier or a
    policy that writes more, affect both alike. A turn is one round or more, so that there are four turns or, if possible, eight or twelve.
    ConfigurationError for fewer than four rounds."""
    commits = await _commits(connection, run_id, first, last)
    round_batches = rounds(queue)
    length = round_batches * max(1, (len(commits) - 1) // round_batches // MIN_TURNS)
    turns = (len(commits) - 1) // length // 4 * 4
    if not turns:
        raise ConfigurationError(
            f"{len(commits)} batches are committed, and four rounds of {round_batches} take {4 * round_batches + 1}: let the run train longer"
        )
    parts = [(commits[turn * length], commits[(turn + 1) * length]) for turn in range(turns)]
    return (
        _joined([part for turn, part in enumerate(parts) if turn % 4 in (0, 3)], length),
        _joined([part for turn, part in enumerate(parts) if turn % 4 in (1, 2)], length),
    )


def _joined(parts: Sequence[tuple[datetime, datetime]], length: int) -> Span:
    joined: list[tuple[datetime, datetime]] = []
    for start, end in parts:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return Span(tuple(joined), length * len(parts))


async def workload(
    connection: AsyncConnection, run_id: int, config: Config, within: Span
) -> tuple[Workload, float]:
    """The workload of a span; and the ratio of the slowest of as many groups as may be in flight to the mean.
    ConfigurationError if nothing was generated in it."""
    plan = plan_of_config(config)
    share = plan.queue.places / (plan.queue.places + 1)  # the slowest of this many, on average
    figures = await work_figures(
        connection, run_id, within, slots=plan.slots, verify_slots=plan.verify_slots, share=share
    )
    if figures is None:
        raise ConfigurationError(
            "no rollout of this run ended between its first commit and its last: let it train longer"
        )
    attempts, verified, steps, trained = (
        figures.attempts,
        figures.verifications,
        figures.steps,
        figures.training,
    )
    stream = steps.tokens / steps.generation_s
    at_once = figures.at_once / plan.servers
    found = {
        "turns": figures.calls,
        "new_tokens": steps.tokens / steps.n,
        "added_tokens": steps.added / steps.n,
        "tool_s": steps.gap_s / steps.n,
        "overhead_s": 0.0,
        "verify_s": verified.mean_s,
        "stream_tokens_s": stream,
        "server_tokens_s": stream * max(1.0, at_once),  # at least this much: it was observed
        "train_tokens_s": trained.merged / max(1e-9, trained.busy_s - trained.fixed_s),
        "train_fixed_s": trained.fixed_s / trained.n,
        "train_tokens": trained.merged / (trained.groups * config.queue.group_size),
        "checkpoint_gb": sum(file.stat().st_size for file in figures.newest.glob("**/*") if file.is_file())
        / 1e9,
        "filtered": figures.filtered / max(1, figures.filtered + figures.trained),
        "slot_cv": attempts.cv,
        "slot_alike": min(0.99, max(0.0, attempts.alike)),
        "verify_cv": verified.cv,
        "verify_alike": min(0.99, max(0.0, verified.alike)),
        "admit_s": figures.admitted_s,
        "dispatch_s": max(0.0, figures.leased.mean_s),
        "dispatch_cv": figures.leased.cv,
        "claim_s": figures.claimed_s,
        "settle_s": max(0.0, figures.settled.mean_s),
        "settle_cv": figures.settled.cv,
        "report_s": figures.report_s,
        "conclude_s": figures.concluded_s,
    }
    work = given({key: float(f"{value:.6g}") for key, value in found.items()}, "this run")
    busy = max(1.0, figures.held_s / within.seconds)
    overhead_s = float(f"{_rest(plan, work, busy, attempts.mean_s):.6g}")
    return work.model_copy(update={"overhead_s": overhead_s}), figures.longest


def _rest(plan: Plan, work: Workload, busy: float, held: float) -> float:
    """Seconds of a rollout in its slot without another explanation. With them, the mean values reproduce this run. The time that calls wait for
    each other is part of their seconds already, and must not be counted twice."""
    overhead_s = 0.0
    for _ in range(20):  # more rest means less waiting for others, so this converges from below
        overhead_s = max(
            0.0, overhead_s + held - slot_s(plan, work.model_copy(update={"overhead_s": overhead_s}), busy)
        )
    return overhead_s


async def predicted_against(
    connection: AsyncConnection, run_id: int, config: Config, *, calibrate: Span, against: Span
) -> list[Held]:
    """The prediction of `size` for a run from the work that `calibrate` measured, compared with the span `against`.
    ConfigurationError if the span has too little work."""
    work, _ = await workload(connection, run_id, config, calibrate)
    predicted = _predicted(plan_of_config(config), work)
    measurements = await done(connection, run_id, config, against)
    return [
        Held(name, predicted[name], measured) for name, measured in measurements.items() if name in predicted
    ]


async def both_ways(
    connection: AsyncConnection, run_id: int, config: Config, first: int = 0, last: int = 1 << 30
) -> list[Held]:
    """Each of two alternating spans predicted from the other: geometric means of both directions. Differences between the spans, such
    as other work on the machine, cancel out. A shorter run is predicted from itself. ConfigurationError if it has too little work."""
    whole = await span(connection, run_id, first, last)
    queue = plan_of_config(config).queue
    if whole.batches < 4 * rounds(queue):
        return await predicted_against(connection, run_id, config, calibrate=whole, against=whole)
    first_half, second_half = await taking_turns(connection, run_id, queue, first, last)
    forward = await predicted_against(connection, run_id, config, calibrate=first_half, against=second_half)
    backward = await predicted_against(connection, run_id, config, calibrate=second_half, against=first_half)
    return [
        Held(a.name, math.sqrt(a.predicted * b.predicted), math.sqrt(a.measured * b.measured))
        for a, b in zip(forward, backward, strict=True)
    ]


async def done(connection: AsyncConnection, run_id: int, config: Config, within: Span) -> dict[str, float]:
    """The measured figures of a span. Postgres's bytes are of the whole run, including indexes and partially filled pages."""
    figures = await throughput_figures(connection, run_id, within)
    steps, trained = figures.steps, figures.training
    return {
        "groups/min": 60 * trained.groups / within.seconds,
        "steps/s": steps.n / within.seconds,
        "completions/s of a gateway": steps.n / within.seconds / max(1, steps.gateways),
        "new tokens/s": steps.tokens / within.seconds,
        "seconds of a batch in the trainer": trained.busy_s / trained.n,
        "slots at work": figures.held_s / (config.rollout.slots * within.seconds),
        "trainer at work": trained.busy_s / within.seconds,
        "staleness, batches": figures.staleness,
        "bytes per step": figures.step_bytes,
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
