"""How much faster is prefix-tree merging, against which baseline, and how close to the bound?

Two baselines, both with the same model, attention kernel and head, both without padding:
  varlen    packed rows, one per completion: what a trainer that takes (state, action) pairs as they come does
  rollout   packed rows, one per append-only stretch of a rollout: what a trainer that keeps whole rollouts does
The bound is the ratio of the floating-point operations. Time is process CPU time of planning, forward and backward, one thread; the methods
are timed in turns (turns.py). Run: python -m trainer.benchmarks.tree [--json] [--scale 1] [--long]
"""

import argparse
import json as json_module
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainer.benchmarks.bars import bar
from trainer.benchmarks.bounded import report
from trainer.benchmarks.shapes import Shape, group, shapes
from trainer.benchmarks.turns import Race, Timed, flops
from trainer.samples import Ids, Sample
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import LossEdges, Pack, pack_samples
from trainer.tree.passes import Budget, Pass
from trainer.tree.plan import TreePlan

ROW_BUDGET = 2048  # tokens per forward pass of the baselines; larger is slower here (cache, page faults)
ONE_PASS = Budget(1 << 30, 1 << 60)
ROUNDS = 6  # in which every method is timed in turn; each runs all its packs at least once
BOUND_SHARE = 0.9  # share of the bound that must be reached against varlen


def policy() -> Any:
    """A small Qwen3 with random weights: 2 layers, hidden 256, so that a full run takes less than a minute."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=768,
        vocab_size=2048,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    attach_tree_attention(model)
    return model


def row_packs(samples: Sequence[Sample], *, per_rollout: bool) -> list[Pack]:
    """The baselines as packs without sharing: one causal square per row, each loss edge in one row."""
    rows: list[tuple[Ids, list[Sample]]] = []
    for sample in sorted(samples, key=lambda s: len(s.ids), reverse=True):
        for ids, members in rows if per_rollout else []:
            if members[0].rollout == sample.rollout and np.array_equal(ids[: len(sample.ids)], sample.ids):
                members.append(sample)
                break
        else:
            rows.append((sample.ids, [sample]))
    packs: list[Pack] = []
    part: list[tuple[Ids, list[Sample]]] = []
    for row in rows:
        if part and sum(len(ids) for ids, _ in part) + len(row[0]) > ROW_BUDGET:
            packs.append(_row_pack(part))
            part = []
        part.append(row)
    packs.append(_row_pack(part))
    return packs


def _row_pack(rows: list[tuple[Ids, list[Sample]]]) -> Pack:
    begins = np.cumsum([0, *(len(ids) for ids, _ in rows)])
    placed = [
        (sample, int(begin)) for (_, members), begin in zip(rows, begins, strict=False) for sample in members
    ]
    samples = tuple(sample for sample, _ in placed)
    offsets = [np.arange(sample.action_len) for sample in samples]
    plan = TreePlan(
        ids=np.concatenate([ids for ids, _ in rows]),
        position_ids=np.concatenate([np.arange(len(ids)) for ids, _ in rows]),
        subtree_end=np.repeat(begins[1:], [len(ids) for ids, _ in rows]),
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
    last = np.array([begin + len(sample.tokens) - 1 for sample, begin in placed], np.int64)
    one = Pass(((0, plan.tokens),), 0, 0, -1)
    return Pack(samples, tuple(range(len(samples))), plan, edges, (one,), last)


def bars(model: Any, shape: Shape) -> tuple[list[dict[str, Any]], Timed]:
    """Measure one shape, print its line and return its bars, and what the tree cost.

    Where a bar misses, the shape is measured once more and both measurements count together: other work on the machine slows one draw in many.
    """
    samples = shape.build(model.config.vocab_size)
    race = Race(
        model,
        {
            "tree": lambda: [pack_samples(samples, ONE_PASS)],
            "varlen": lambda: row_packs(samples, per_rollout=False),
            "rollout": lambda: row_packs(samples, per_rollout=True),
        },
    )
    race.run(ROUNDS)
    found = _bars(shape, race)
    again = not all(one["holds"] for one in found)
    if again:
        race.run(ROUNDS)
        found = _bars(shape, race)
    tree, varlen, rollout = (race.timed[name] for name in ("tree", "varlen", "rollout"))
    for baseline in (varlen, rollout):
        assert baseline.losses.keys() == tree.losses.keys()
        for sample, loss in tree.losses.items():
            assert abs(baseline.losses[sample] - loss) <= 1e-4 * abs(loss), (baseline.losses[sample], loss)
    print(
        f"{shape.name:32} {len(samples):4d} samples  {varlen.tokens:7d} → {tree.tokens:6d} tokens "
        f"({varlen.tokens / tree.tokens:5.1f}×)  {tree.seconds:6.2f} s  "
        f"×varlen {varlen.over(tree):5.1f} of {varlen.bound(tree):5.1f}  "
        f"×rollout {rollout.over(tree):5.2f} of {rollout.bound(tree):5.2f}  "
        f"planning {tree.planning / tree.seconds:.1%}{'  measured twice' if again else ''}",
        flush=True,
    )
    return found, tree


def _bars(shape: Shape, race: Race) -> list[dict[str, Any]]:
    tree, varlen, rollout = (race.timed[name] for name in ("tree", "varlen", "rollout"))
    share = varlen.over(tree) / varlen.bound(tree)
    planning = tree.planning / tree.seconds
    found = [
        bar(f"{shape.name}: share of the bound, varlen", share, "ratio", BOUND_SHARE),
        bar(f"{shape.name}: planning", planning, "share of the step", 0.02, at_most=True),
    ]
    if shape.target_varlen:
        found.append(bar(f"{shape.name}: speed-up, varlen", varlen.over(tree), "×", shape.target_varlen))
    if shape.target_rollout:
        found.append(
            bar(f"{shape.name}: speed-up, rollout rows", rollout.over(tree), "×", shape.target_rollout)
        )
    return found


def large_batch(model: Any, seconds_per_flop: float, groups: int = 32) -> dict[str, Any]:
    """Plan a batch that nobody would train here, print its line and return its bar: planning against the step's time by its operations."""
    samples = group(8, 30, 1000, 100, 100, groups)(model.config.vocab_size)
    started = time.process_time()
    pack = pack_samples(samples, Budget(16384))
    planning = time.process_time() - started
    step = flops(model, [pack]) * seconds_per_flop
    print(
        f"planning {len(samples)} stored steps: {pack.naive_tokens} → {pack.plan.tokens} tokens in {len(pack.passes)} passes, "
        f"{planning:.2f} s of a step of {step:.0f} s"
    )
    return bar("planning a large batch", planning / step, "share of the step", 0.02, at_most=True)


def main(json: bool = False, scale: float = 0.3, long: bool = False, *, memory: bool = True) -> None:
    """Print one line per shape, of planning and of memory, then the bars (with `json`: one last line {"bars": [...]})."""
    torch.set_num_threads(1)
    model = policy()
    print(f"all lengths × {scale}; CPU time of forward and backward, one thread")
    warm_up = shapes(0.1)[0].build(model.config.vocab_size)
    Race(model, {"tree": lambda: [pack_samples(warm_up, ONE_PASS)]}).run(1)
    results = []
    for shape in shapes(scale, long=long):
        found, tree = bars(model, shape)
        results += found
    results.append(large_batch(model, tree.seconds / tree.flops, groups=32 if memory else 1))
    if memory:
        results += report(long=long)
    if json:
        print(json_module.dumps({"bars": results}))
        return
    for one in results:
        print(
            f"{'holds ' if one['holds'] else 'MISSED'} {one['name']}: {one['value']} (target {one['target']})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=0.3, help="multiplies all lengths; 1 takes minutes")
    parser.add_argument(
        "--long", action="store_true", help="add the shape of the 40× target and a path of 32,768 tokens"
    )
    options = parser.parse_args()
    main(options.json, options.scale, options.long)
