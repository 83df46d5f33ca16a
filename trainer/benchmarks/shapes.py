"""Synthetic step trees with the sharing patterns of real agents, random token ids."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orchestrator.trajectory.branch import Branch
from trainer.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A named set of samples. The targets are speed-ups; 0 means no target."""

    name: str
    build: Callable[[int], list[Sample]]  # vocabulary size → samples
    target_varlen: float = 0.0  # against packed rows, one per completion
    target_rollout: float = 0.0  # against one row per rollout
    in_passes: bool = False  # the tree too is forwarded in micro-batches, as if merging were only packing


def _turns(
    rng: np.random.Generator,
    vocab: int,
    above: Branch,
    turns: int,
    action: int,
    observation: int,
    group: str,
    rollout: str,
) -> list[Sample]:
    """One append-only sequence: each step appends an observation (the first step none) and an action."""
    samples: list[Sample] = []
    logprobs = np.full(action, -np.log(vocab), np.float32)
    ones = np.ones(action, np.float32)
    for step in range(turns):
        ids = rng.integers(0, vocab, action + observation * (step > 0)).astype(np.int32)
        above = Branch(own=ids, parent=above, keep_len=len(above))
        samples.append(
            Sample(
                tokens=above,
                state_len=len(above) - action,
                behavior_logprobs=logprobs,
                versions=np.zeros(action, np.int32),
                advantage=ones,
                weight=ones,
                group=group,
                rollout=rollout,
                step=step,
            )
        )
    return samples


def group(
    size: int, turns: int, prompt: int, action: int, observation: int, groups: int = 1
) -> Callable[[int], list[Sample]]:
    """`size` append-only rollouts of one prompt (size 1: a single chain); with `groups` > 1, of each of that many prompts."""

    def build(vocab: int) -> list[Sample]:
        rng = np.random.default_rng(0)
        samples: list[Sample] = []
        for number in range(groups):
            start = Branch(own=rng.integers(0, vocab, prompt).astype(np.int32))
            for rollout in range(size):
                samples += _turns(rng, vocab, start, turns, action, observation, f"g{number}", str(rollout))
        return samples

    return build


def rewrites(
    size: int, contexts: int, turns: int, prompt: int, action: int, observation: int
) -> Callable[[int], list[Sample]]:
    """Like `group`, but after `turns` turns the history is replaced by a summary, one observation long."""

    def build(vocab: int) -> list[Sample]:
        rng = np.random.default_rng(0)
        start = Branch(own=rng.integers(0, vocab, prompt).astype(np.int32))
        samples: list[Sample] = []
        for rollout in range(size):
            branch = start
            for _ in range(contexts):
                samples += _turns(rng, vocab, branch, turns, action, observation, "g", str(rollout))
                branch = Branch(
                    own=rng.integers(0, vocab, observation).astype(np.int32), parent=start, keep_len=prompt
                )
        return samples

    return build


def shapes(scale: float, *, quick: bool = False) -> list[Shape]:
    """The shapes; `scale` multiplies prompt, action and observation lengths. `quick` leaves out the one that takes minutes."""

    def n(tokens: int) -> int:
        return max(2, round(tokens * scale))

    chosen = [
        Shape(
            name="chain of 24 turns, prompt 1024", build=group(1, 24, n(1024), n(64), n(64)), target_varlen=10
        ),
        Shape(name="G16 × 3 turns, prompt 2048", build=group(16, 3, n(2048), n(64), n(16)), target_rollout=3),
        Shape(
            name="G8 × 8 turns, prompt 2048",
            build=group(8, 8, n(2048), n(16), n(24)),
            target_varlen=20,
            target_rollout=3,
        ),
        Shape(
            name="G4 × 3 rewrites × 6 turns", build=rewrites(4, 3, 6, n(1024), n(56), n(56)), target_varlen=7
        ),
        Shape(name="G16 × 1 turn, one token shared", build=group(16, 1, 1, n(1024), 0), in_passes=True),
    ]
    if not quick:
        chosen.append(
            Shape(
                name="G16 × 12 turns, prompt 4096",
                build=group(16, 12, n(4096), n(8), n(16)),
                target_varlen=40,
            )
        )
    return chosen
