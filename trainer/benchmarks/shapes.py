"""Synthetic trajectories with the sharing patterns of real agents, random token ids."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainer.samples import Ids, Sample


@dataclass(frozen=True, slots=True)
class Shape:
    """A named set of samples. The targets are speed-ups; 0 means none is set."""

    name: str
    build: Callable[[int], list[Sample]]  # vocabulary size → samples
    target_varlen: float = 0.0  # against packed rows, one per completion
    target_rollout: float = 0.0  # against one row per rollout


def _turns(
    rng: np.random.Generator,
    vocab: int,
    state: Ids,
    turns: int,
    action: int,
    observation: int,
    group: str,
    rollout: str,
) -> tuple[list[Sample], Ids]:
    samples = []
    for step in range(turns):
        reply = rng.integers(0, vocab, action).astype(np.int32)
        samples.append(
            Sample.of(
                state,
                reply,
                behavior_logprobs=np.full(action, -np.log(vocab), np.float32),
                advantage=1.0,
                group=group,
                rollout=rollout,
                step=step,
            )
        )
        state = np.concatenate([state, reply, rng.integers(0, vocab, observation).astype(np.int32)])
    return samples, state


def group(size: int, turns: int, prompt: int, action: int, observation: int) -> Callable[[int], list[Sample]]:
    """`size` append-only rollouts of one prompt (size 1: a single chain)."""

    def build(vocab: int) -> list[Sample]:
        rng = np.random.default_rng(0)
        start = rng.integers(0, vocab, prompt).astype(np.int32)
        return [
            sample
            for rollout in range(size)
            for sample in _turns(rng, vocab, start, turns, action, observation, "g", str(rollout))[0]
        ]

    return build


def rewrites(
    size: int, contexts: int, turns: int, prompt: int, action: int, observation: int
) -> Callable[[int], list[Sample]]:
    """Like `group`, but after `turns` turns the history is replaced by a summary, one observation long."""

    def build(vocab: int) -> list[Sample]:
        rng = np.random.default_rng(0)
        start = rng.integers(0, vocab, prompt).astype(np.int32)
        samples: list[Sample] = []
        for rollout in range(size):
            state = start
            for _ in range(contexts):
                more, _end = _turns(rng, vocab, state, turns, action, observation, "g", str(rollout))
                samples += more
                state = np.concatenate([start, rng.integers(0, vocab, observation).astype(np.int32)])
        return samples

    return build


def shapes(scale: float, *, long: bool = False) -> list[Shape]:
    """The shapes; `scale` multiplies prompt, action and observation lengths. `long` adds the one that takes minutes."""

    def n(tokens: int) -> int:
        return max(2, round(tokens * scale))

    chosen = [
        Shape("chain of 24 turns, prompt 1024", group(1, 24, n(1024), n(64), n(64)), target_varlen=10),
        Shape("G16 × 3 turns, prompt 2048", group(16, 3, n(2048), n(64), n(16)), target_rollout=3),
        Shape(
            "G8 × 8 turns, prompt 2048",
            group(8, 8, n(2048), n(16), n(24)),
            target_varlen=20,
            target_rollout=3,
        ),
        Shape("G4 × 3 rewrites × 6 turns", rewrites(4, 3, 6, n(1024), n(56), n(56)), target_varlen=7),
    ]
    if long:
        chosen.append(
            Shape("G16 × 12 turns, prompt 4096", group(16, 12, n(4096), n(8), n(16)), target_varlen=40)
        )
    return chosen
