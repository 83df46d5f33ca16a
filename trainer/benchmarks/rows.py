"""The baselines as packs without sharing: one causal square per row, each loss edge in one row, the same kernels as the tree's.

padded    one row per completion, padded to the longest of its micro-batch of `PADDED_ROWS` rows, dealt at random; padding is computed
varlen    one row per completion, packed into `ROW_BUDGET` tokens: a trainer that takes (state, action) pairs unchanged
rollout   one row per append-only sequence of a rollout, packed in the same way: a trainer that keeps whole rollouts
"""

from collections.abc import Callable, Sequence

import numpy as np

from trainer.samples import Ids, Sample
from trainer.tree.pack import LossEdges, Pack
from trainer.tree.passes import Pass
from trainer.tree.plan import TreePlan

# Tokens per forward pass of the packed baselines; larger is slower on a CPU (cache, page faults).
ROW_BUDGET = 2048
PADDED_ROWS = 4

Row = tuple[Ids, list[Sample]]  # the tokens, and the samples whose loss is computed on them


def padded(samples: Sequence[Sample], budget: int = ROW_BUDGET) -> list[Pack]:
    """Micro-batches of `PADDED_ROWS` random completions, the longest micro-batch first. `budget` is ignored."""
    order = np.random.default_rng(0).permutation(len(samples))
    rows: list[Row] = [(samples[i].ids, [samples[i]]) for i in order]
    parts = [rows[at : at + PADDED_ROWS] for at in range(0, len(rows), PADDED_ROWS)]
    packs = [_packed(part, width=max(len(ids) for ids, _ in part)) for part in parts]
    return sorted(packs, key=lambda pack: pack.plan.tokens, reverse=True)


def varlen(samples: Sequence[Sample], budget: int = ROW_BUDGET) -> list[Pack]:
    """Completions, longest first."""
    return _filled([(sample.ids, [sample]) for sample in _longest_first(samples)], budget)


def rollout(samples: Sequence[Sample], budget: int = ROW_BUDGET) -> list[Pack]:
    """Append-only sequences, longest first: a sample that is a prefix of another sample of its rollout shares that sample's row."""
    rows: list[Row] = []
    for sample in _longest_first(samples):
        for ids, members in rows:
            if members[0].rollout == sample.rollout and np.array_equal(ids[: len(sample.ids)], sample.ids):
                members.append(sample)
                break
        else:
            rows.append((sample.ids, [sample]))
    return _filled(rows, budget)


BASELINES: dict[str, Callable[..., list[Pack]]] = {
    "padded": padded,
    "varlen": varlen,
    "rollout": rollout,
}


def _longest_first(samples: Sequence[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: len(sample.tokens), reverse=True)


def _filled(rows: Sequence[Row], budget: int) -> list[Pack]:
    """Packs of at most `budget` tokens, or of one longer row."""
    packs: list[Pack] = []
    part: list[Row] = []
    for row in rows:
        if part and sum(len(ids) for ids, _ in part) + len(row[0]) > budget:
            packs.append(_packed(part))
            part = []
        part.append(row)
    packs.append(_packed(part))
    return packs


def _packed(rows: Sequence[Row], width: int = 0) -> Pack:
    """The rows side by side, each padded with token 0 to at least `width` tokens."""
    lengths = [max(len(ids), width) for ids, _ in rows]
    begins = np.cumsum([0, *lengths])
    placed = [
        (sample, int(begin)) for (_, members), begin in zip(rows, begins, strict=False) for sample in members
    ]
    samples = tuple(sample for sample, _ in placed)
    offsets = [np.arange(sample.action_len) for sample in samples]
    plan = TreePlan(
        ids=np.concatenate(
            [np.pad(ids, (0, n - len(ids))) for (ids, _), n in zip(rows, lengths, strict=True)]
        ),
        position_ids=np.concatenate([np.arange(n) for n in lengths]),
        subtree_end=np.repeat(begins[1:], lengths),
        squares=np.stack([begins[:-1], begins[1:]], 1),
        rectangles=np.empty((0, 4), np.int64),
    )
    edges = LossEdges(
        position=np.concatenate(
            [begin + s.state_len - 1 + o for (s, begin), o in zip(placed, offsets, strict=True)]
        ),
        target=np.concatenate([s.ids[s.state_len :] for s in samples]).astype(np.int64),
        sample=np.repeat(np.arange(len(samples)), [s.action_len for s in samples]),
        offset=np.concatenate(offsets),
        temperature=np.ones(sum(s.action_len for s in samples), np.float32),
    )
    last_tokens = np.array([begin + len(sample.tokens) - 1 for sample, begin in placed], np.int64)
    single_pass = Pass(ranges=((0, plan.tokens),), past=0, trunk=0, parent=-1)
    return Pack(
        samples=samples,
        indices=tuple(range(len(samples))),
        plan=plan,
        edges=edges,
        passes=(single_pass,),
        last=last_tokens,
    )
