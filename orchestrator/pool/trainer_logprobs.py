"""Trainer logprobs of trained steps: written in their batch's commit, read by the view token_ratios."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One trained step of a batch. `logprobs`: little-endian float32 of its action tokens, NaN where the train weight is 0."""

    rollout_id: int
    attempt: int
    idx: int
    part: int
    logprobs: bytes


_INSERT = text(
    """
    INSERT INTO trained_steps (run_id, rollout_id, attempt, idx, batch_id, part, logprobs)
    SELECT :run, rollout_id, attempt, idx, :batch, part, logprobs
      FROM unnest(CAST(:rollouts AS bigint[]), CAST(:attempts AS smallint[]), CAST(:steps AS integer[]), CAST(:parts AS smallint[]),
                  CAST(:logprobs AS bytea[])) AS v(rollout_id, attempt, idx, part, logprobs)
    ON CONFLICT DO NOTHING
    """
)


async def write_trainer_logprobs(
    connection: AsyncConnection, run_id: int, batch_id: int, trained: Sequence[TrainedStep]
) -> None:
    """Store the trainer logprobs of a batch in one statement; once, even if its commit is repeated. They stay if the batch is voided."""
    if not trained:
        return
    values = {
        "rollouts": [step.rollout_id for step in trained],
        "attempts": [step.attempt for step in trained],
        "steps": [step.idx for step in trained],
        "parts": [step.part for step in trained],
        "logprobs": [step.logprobs for step in trained],
    }
    await connection.execute(_INSERT, {"run": run_id, "batch": batch_id, **values})
