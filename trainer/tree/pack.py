"""A pack: all samples of a train step as one tree, the positions of their loss in it, and the passes in which it is forwarded.

All common prefixes are shared: within a rollout, within a group and across groups. Samples that share nothing cost as much as with ordinary
sequence packing. The order of the samples and their data (weights, advantages, logprobs) are kept apart from the tree, per loss edge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.samples import Floats, Ids, Sample
from trainer.tree.passes import Pass, PassBudget, cut_into_passes
from trainer.tree.plan import FlatTree, Longs, TreePlan

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LossEdges:
    """One row per action token, in order of sample and token. E rows.

    `position` is the flat position of the predictor, the token before the target *in the sample*: at a branch the last
    token of the shared part, never the flat neighbour. Several edges may share a predictor.
    """

    position: Longs  # int64[E]
    target: Longs  # int64[E], token id
    sample: Longs  # int64[E], index into the pack's samples
    offset: Longs  # int64[E], index into the sample's per-action-token arrays
    temperature: Doubles  # float64[E]: of a float64 model, 0.7 must not be float32's

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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pack:
    """Samples that are forwarded as one tree. `indices` are their places in the sequence given to `pack_samples`."""

    samples: tuple[Sample, ...]
    indices: tuple[int, ...]
    plan: TreePlan
    edges: LossEdges
    passes: tuple[Pass, ...]
    last: Longs  # int64[samples], flat position of each sample's last token
    route_conflicts: int = 0  # equal tokens that are not merged because other experts computed them

    def by_sample(self, samples: Sequence[Sample], values: npt.ArrayLike) -> Floats:
        """`values` [E] along the loss edges as float32 of every action token of `samples`, one sample after the other. `samples` are those that
        the pack was made of. NaN for tokens without an edge."""
        starts = np.cumsum([0, *(sample.action_len for sample in samples)])
        found = np.full(starts[-1], np.nan, np.float32)
        found[starts[np.array(self.indices, np.int64)[self.edges.sample]] + self.edges.offset] = values
        return found

    @property
    def naive_tokens(self) -> int:
        """Tokens that one row per sample would forward."""
        return sum(len(sample.tokens) for sample in self.samples)


def pack_samples(samples: Sequence[Sample], budget: PassBudget, *, trained_only: bool = True) -> Pack:
    """The tree of the samples, cut into passes within the budget; without samples a pack without passes.

    With `trained_only`, samples without a token of weight > 0 and edges of weight 0 are left out.
    Raises ValueError if the budget is too small for the longest sample.
    """
    indices = tuple(i for i, sample in enumerate(samples) if sample.trained_tokens or not trained_only)
    chosen = tuple(samples[i] for i in indices)
    tree = FlatTree([sample.tokens for sample in chosen])
    lengths = [sample.action_len for sample in chosen]
    edges = LossEdges(
        position=_joined(
            [tree.locate(s.tokens, s.state_len - 1, len(s.tokens) - 1) for s in chosen], np.int64
        ),
        target=_joined([s.action for s in chosen], np.int64),
        sample=np.repeat(np.arange(len(chosen)), lengths),
        offset=_joined([np.arange(length) for length in lengths], np.int64),
        temperature=np.repeat(np.array([s.temperature for s in chosen], np.float64), lengths),
    )
    if trained_only:
        weighted = _joined([s.weight for s in chosen], np.float32) > 0
        edges = LossEdges(
            position=edges.position[weighted],
            target=edges.target[weighted],
            sample=edges.sample[weighted],
            offset=edges.offset[weighted],
            temperature=edges.temperature[weighted],
        )
    last_tokens = _joined([tree.locate(s.tokens, len(s.tokens) - 1, len(s.tokens)) for s in chosen], np.int64)
    passes = cut_into_passes(tree, budget)
    return Pack(
        samples=chosen,
        indices=indices,
        plan=tree.plan,
        edges=edges,
        passes=passes,
        last=last_tokens,
        route_conflicts=tree.route_conflicts,
    )


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)
