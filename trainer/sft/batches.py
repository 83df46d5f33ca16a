"""Batches for supervised training: demonstrations by length, with loss weights.

Loss weights per *target* token. Action tokens count 1. Action tokens of letters and digits that also occur in the state before
count 2 (they are copies: the name of a file, a number to add; the rest is a handful of patterns). State tokens count 0.1 (observations
are worth predicting, but not worth much capacity). Tokens that were sampled and must not be learned count 0, and so does padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.sft.corpus import Demonstrations, TokenRole, Tokens

ACTION_WEIGHT = 1.0
COPY_WEIGHT = 2.0
STATE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBatch:
    """B rows padded on the right to T tokens; `weight[b, t]` is the loss weight of predicting `ids[b, t]` from the tokens before.

    `weight[:, 0]` is 0. `action` marks the action tokens, for metrics.
    """

    ids: npt.NDArray[np.int64]  # [B, T]
    weight: npt.NDArray[np.float32]  # [B, T]
    action: npt.NDArray[np.bool_]  # [B, T]

    @property
    def tokens(self) -> int:
        """Tokens that are forwarded, padding included."""
        return int(self.ids.size)


def loss_weights(
    ids: Tokens, action: npt.NDArray[np.uint8], words: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """float32[T], the loss weights of one demonstration. `action` has the roles of its tokens; `words[id]`: whether the token is made of letters
    and digits."""
    weight = np.zeros(len(ids), np.float32)
    weight[action == TokenRole.STATE] = STATE_WEIGHT
    weight[action == TokenRole.ACTION] = ACTION_WEIGHT
    received = np.zeros(len(words), np.bool_)
    for position, (token, role) in enumerate(zip(ids, action, strict=True)):
        if role == TokenRole.STATE:
            received[token] = True
        elif role == TokenRole.ACTION and words[token] and received[token]:
            weight[position] = COPY_WEIGHT
    weight[0] = 0.0
    return weight


def demonstration_batches(
    demonstrations: Demonstrations, words: npt.NDArray[np.bool_], *, rows: int, random: np.random.Generator
) -> Iterator[PaddedBatch]:
    """Endless shuffled epochs. Rows of a batch have similar lengths, so that little is padding."""
    samples = [demonstrations[index] for index in range(len(demonstrations))]
    weights = [loss_weights(ids, action, words) for ids, action in samples]
    lengths = np.diff(demonstrations.offsets)
    while True:
        order = random.permutation(len(samples))
        pools = [order[start : start + 16 * rows] for start in range(0, len(order), 16 * rows)]
        batches = [
            pool[np.argsort(lengths[pool], kind="stable")][start : start + rows]
            for pool in pools
            for start in range(0, len(pool), rows)
        ]
        for index in random.permutation(len(batches)):
            yield _padded([(*samples[row], weights[row]) for row in batches[index]])


def _padded(
    samples: list[tuple[Tokens, npt.NDArray[np.uint8], npt.NDArray[np.float32]]],
) -> PaddedBatch:
    longest = max(len(ids) for ids, _, _ in samples)
    batch = PaddedBatch(
        np.zeros((len(samples), longest), np.int64),
        np.zeros((len(samples), longest), np.float32),
        np.zeros((len(samples), longest), np.bool_),
    )
    for row, (ids, action, weight) in enumerate(samples):
        batch.ids[row, : len(ids)] = ids
        batch.weight[row, : len(ids)] = weight
        batch.action[row, : len(ids)] = action == TokenRole.ACTION
    return batch
