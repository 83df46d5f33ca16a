"""From a closed batch to samples: its rows in the data pool, read once, in the form that the loss needs.

    pool.batches.contents      which rollouts, their pinned advantages and train weights per step
    pool.steps.stored_rows     the rows of the steps: one scan
    pool.steps.folded          the step tree with behavior logprobs, version spans, temperature
    parts                      U lists of groups by queue position, one train step each

Steps of train weight 0 (marked ones) and empty actions make no sample. A train step without samples changes nothing. The result depends
only on the rows, so a batch that is repeated after a crash gives the same samples in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.spans import not_tiling, versions_per_token
from orchestrator.pool.batches import BatchRollout, contents
from orchestrator.pool.steps import StoredRows, StoredStep, folded, stored_rows, trajectories
from orchestrator.pool.transact import passing
from trainer.failures import described
from trainer.samples import Sample
from trainer.update import split_train_steps

_NOT_FOLLOWING = "its stored steps do not follow from one another"


class BadBatch(Exception):
    """This batch cannot be trained: its data do not make samples, or its loss or gradient is not finite."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The samples and rollouts of one train step."""

    samples: Sequence[Sample]
    rollouts: Sequence[BatchRollout]


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """A closed batch as it was read."""

    rollouts: list[BatchRollout]
    steps: StoredRows


async def read_rows(
    connection: AsyncConnection, run_id: int, batch_id: int, *, routes: bool = False
) -> BatchRows:
    """The rows of a closed batch; with `routes`, recorded routes too. Queries alone: PostgreSQL ends a transaction that is silent while its rows
    are folded. Raises BadBatch."""
    rollouts = await contents(connection, batch_id)
    try:
        attempts = [(r.rollout_id, r.attempt) for r in rollouts]
        return BatchRows(rollouts, await stored_rows(connection, run_id, attempts, routes=routes))
    except ValueError as error:
        raise BadBatch(f"{_NOT_FOLLOWING}: {error}") from error


def parts_of(rows: BatchRows, parts: int, permute_seed: Sequence[int] | None) -> list[BatchPart]:
    """The train steps of a batch; at least one, even if nothing in it trains.

    With `permute_seed` (the control) advantages are shuffled among the rollouts. Raises BadBatch, naming the rollout.
    """
    rollouts = rows.rollouts if permute_seed is None else permuted(rows.rollouts, permute_seed)
    try:
        recorded = folded(rows.steps)
    except ValueError as error:
        raise BadBatch(f"{_NOT_FOLLOWING}: {error}") from error
    return make_parts(rollouts, recorded, parts)


async def unreadable(connection: AsyncConnection, run_id: int, batch_id: int, *, routes: bool) -> list[str]:
    """The rollouts of a batch that raise an error when they are read alone; empty if none does, or the batch itself cannot be read."""
    found = []
    try:
        async with connection.begin_nested():
            rollouts = await contents(connection, batch_id)
    except Exception as error:
        if passing(error):
            raise
        return []  # the caller has logged why
    for rollout in rollouts:
        try:
            async with connection.begin_nested():
                attempt = [(rollout.rollout_id, rollout.attempt)]
                recorded = await trajectories(connection, run_id, attempt, routes=routes)
            rollout_samples(rollout, recorded.get(rollout.rollout_id, []))
        except Exception as error:
            if passing(error):
                raise
            found.append(
                f"rollout {rollout.rollout_id} (attempt {rollout.attempt}) of group {rollout.group_id}: {described(error)}"
            )
    return found


def make_parts(
    rollouts: Sequence[BatchRollout], recorded: Mapping[int, Sequence[StoredStep]], parts: int
) -> list[BatchPart]:
    """Samples of all rollouts, split by group in order of queue position. A group without samples still counts in its part. Raises BadBatch."""
    samples = [
        sample
        for rollout in rollouts
        for sample in rollout_samples(rollout, recorded.get(rollout.rollout_id, []))
    ]
    return [
        BatchPart(
            [sample for sample in samples if sample.seq in seqs],
            [rollout for rollout in rollouts if rollout.seq in seqs],
        )
        for seqs in split_train_steps((rollout.seq for rollout in rollouts), parts) or [[]]
    ]


def rollout_samples(rollout: BatchRollout, steps: Sequence[StoredStep]) -> list[Sample]:
    """One sample per step of train weight > 0. Raises BadBatch if the steps are not the rewarded ones, or not usable."""
    name = f"rollout {rollout.rollout_id} (attempt {rollout.attempt})"
    if len(steps) != len(rollout.advantages):
        raise BadBatch(f"{name} has {len(steps)} steps, its reward was for {len(rollout.advantages)}")
    samples = []
    for step, advantage, weight in zip(steps, rollout.advantages, rollout.weights, strict=True):
        actions = len(step.tokens) - step.state_len
        if step.kept_out or not weight or not actions:
            continue
        try:
            _check_shape(step)
            sample = Sample(
                tokens=step.tokens,
                state_len=step.state_len,
                behavior_logprobs=step.logprobs,
                versions=versions_per_token(step.spans),
                advantage=np.full(actions, advantage, np.float32),
                weight=np.full(actions, weight, np.float32),
                group=str(rollout.group_id),
                rollout=str(rollout.rollout_id),
                step=step.idx,
                seq=rollout.seq,
                domain=rollout.domain,
                temperature=step.temperature,
            )
        except ValueError as error:
            raise BadBatch(f"{name} has a step that cannot be trained: {error}") from error
        samples.append(sample)
    return samples


def _check_shape(step: StoredStep) -> None:
    """Raise ValueError if a step's state length, logprobs or version spans do not fit its tokens."""
    tokens, start = len(step.tokens), step.state_len
    if not 0 < start <= tokens:
        raise ValueError(
            f"step {step.idx} has a state of {start} tokens in {tokens} of state and action together"
        )
    if len(step.logprobs) != tokens - start:
        raise ValueError(
            f"step {step.idx} has {len(step.logprobs)} logprobs for {tokens - start} sampled tokens"
        )
    if fault := not_tiling(step.spans, tokens - start):
        raise ValueError(f"step {step.idx}: {fault}")


def permuted(rollouts: Sequence[BatchRollout], seed: Sequence[int]) -> list[BatchRollout]:
    """The control: every rollout gets the advantages of a random one of the batch, so that nothing can be learned from them.

    A source rollout with fewer steps repeats its last advantage. The same seed gives the same permutation.
    """
    targets = [i for i, rollout in enumerate(rollouts) if rollout.advantages]
    sources = np.random.default_rng(list(seed)).permutation(targets).tolist()
    result = list(rollouts)
    for target, source in zip(targets, sources, strict=True):
        advantages = rollouts[source].advantages
        steps = len(rollouts[target].advantages)
        result[target] = replace(
            rollouts[target], advantages=[advantages[min(i, len(advantages) - 1)] for i in range(steps)]
        )
    return result
