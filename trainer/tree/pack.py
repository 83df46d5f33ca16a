"""Packs: which samples share one tree, and where their loss sits in it.

Sharing exists only inside a pack, so samples are packed by group; groups that fit together share a pack, and a group
larger than the budget is cut between rollouts, then between samples. A single sample larger than the budget is a pack of
its own. A pack without any sharing costs what ordinary sequence packing costs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from trainer.samples import Floats, Ids, Sample
from trainer.tree.plan import FlatTree, Longs, TreePlan
from trainer.tree.trie import merged_tokens


@dataclass(frozen=True, slots=True, eq=False)
class LossEdges:
    """One row per action token, in order of sample and token. E rows.

    `position` is the flat place of the predictor, the token before the target *in the sample*: at a branch the last
    token of the shared part, never the flat neighbour. Several edges may share a predictor.
    """

    position: Longs  # int64[E]
    target: Longs  # int64[E], token id
    sample: Longs  # int64[E], index into the pack's samples
    offset: Longs  # int64[E], index into the sample's per-action-token arrays
    temperature: Floats  # float32[E]

    def __len__(self) -> int:
        return len(self.position)

    def gather(self, samples: Sequence[Sample], field: Callable[[Sample], Floats | Ids]) -> Floats:
        """float32[E]: a per-action-token array of the samples, laid out along the edges."""
        if not samples:
            return np.empty(0, np.float32)
        flat = np.concatenate([field(sample) for sample in samples])
        starts = np.cumsum([0, *(sample.action_len for sample in samples[:-1])])
        picked: Floats = flat[starts[self.sample] + self.offset].astype(np.float32)
        return picked


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Samples that are forwarded as one tree. `indices` are their places in the sequence given to `pack_samples`."""

    samples: tuple[Sample, ...]
    indices: tuple[int, ...]
    plan: TreePlan
    edges: LossEdges

    @property
    def naive_tokens(self) -> int:
        """Tokens that one row per sample would forward."""
        return sum(len(sample.ids) for sample in self.samples)


def pack_samples(samples: Sequence[Sample], budget: int, *, trained_only: bool = True) -> list[Pack]:
    """Pack samples so that each pack has at most `budget` merged tokens (but at least one sample).

    With `trained_only`, samples without a token of weight > 0 are left out, and so are edges of weight 0.
    """
    kept = [i for i, sample in enumerate(samples) if sample.trained_tokens or not trained_only]
    packs: list[Pack] = []
    open_pack: list[int] = []
    room = budget
    for unit, tokens in _units(samples, kept, budget):
        if open_pack and tokens > room:
            packs.append(_build(samples, open_pack, trained_only))
            open_pack, room = [], budget
        open_pack = open_pack + unit
        room -= tokens
    if open_pack:
        packs.append(_build(samples, open_pack, trained_only))
    return packs


def _units(samples: Sequence[Sample], kept: list[int], budget: int) -> Iterable[tuple[list[int], int]]:
    """Runs of samples that stay together, with their merged tokens: groups, or what an oversized group is cut into."""
    for _, members in groupby(
        sorted(kept, key=lambda i: (samples[i].seq, samples[i].group, i)), _group(samples)
    ):
        group = list(members)
        tokens = _merged(samples, group)
        if tokens <= budget:
            yield group, tokens
            continue
        rollouts = [
            list(part)
            for _, part in groupby(
                sorted(group, key=lambda i: (samples[i].rollout, i)), lambda i: samples[i].rollout
            )
        ]
        pieces = [
            piece
            for rollout in rollouts
            for piece in ([rollout] if _merged(samples, rollout) <= budget else [[i] for i in rollout])
        ]
        part: list[int] = []
        for piece in pieces:
            if part and _merged(samples, part + piece) > budget:
                yield part, budget  # counted as full, so that what is left of this group starts a new pack
                part = []
            part = part + piece
        yield part, _merged(samples, part)


def _group(samples: Sequence[Sample]) -> Callable[[int], tuple[int, str]]:
    return lambda i: (samples[i].seq, samples[i].group)


def _merged(samples: Sequence[Sample], indices: Iterable[int]) -> int:
    return merged_tokens([samples[i].ids for i in indices])


def _build(samples: Sequence[Sample], indices: list[int], trained_only: bool) -> Pack:
    chosen = tuple(samples[i] for i in indices)
    tree = FlatTree([sample.ids for sample in chosen])
    position, target, owner, offset, temperature = [], [], [], [], []
    for i, sample in enumerate(chosen):
        offsets = np.flatnonzero(sample.weight) if trained_only else np.arange(sample.action_len)
        predictors = tree.locate(sample.ids, sample.state_len - 1, len(sample.ids) - 1)
        position.append(predictors[offsets])
        target.append(sample.ids[sample.state_len :][offsets].astype(np.int64))
        owner.append(np.full(len(offsets), i, np.int64))
        offset.append(offsets.astype(np.int64))
        temperature.append(np.full(len(offsets), sample.temperature, np.float32))
    edges = LossEdges(
        np.concatenate(position),
        np.concatenate(target),
        np.concatenate(owner),
        np.concatenate(offset),
        np.concatenate(temperature),
    )
    return Pack(chosen, tuple(indices), tree.plan, edges)
