"""The cost of bounded memory: peak memory and CPU time of one tree in passes, against one graph and its longest sample alone.

Every case is a process of its own: `python -m trainer.benchmarks.bounded CASE [--scale 1]` prints one JSON line. The peak is the growth of the
resident set over forward and backward (resident.py); the time is process CPU time, one thread.

    whole     the tree in one pass
    longest   its longest sample alone, in one pass: what any trainer must hold
    bounded   the tree in passes of a third of the longest sample
    row       one sample of 32,768 tokens in one pass, a smaller model
    path      the same in passes of 2,048
    step      the same through a whole train step as configured by default: CISPO, its metrics, clipping, AdamW
    longpath  one of 196,608 tokens in passes of 2,048
"""

import argparse
import json
import os

from orchestrator.contracts.numbers import option, real

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from orchestrator.settings.trainer import TrainerSection
from trainer.benchmarks.qwen3 import VOCAB, policy
from trainer.benchmarks.resident import grown, in_fresh_process
from trainer.benchmarks.shapes import rewrites
from trainer.benchmarks.targets import bar
from trainer.learner import optimizer_settings, update_settings
from trainer.samples import Sample
from trainer.tree.execute import backward
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.update import make_optimizer, train_step

PATHS = {"row": 32_768, "path": 32_768, "step": 32_768, "longpath": 196_608}  # tokens
QUICK = ("whole", "longest", "bounded")
CASES = (*QUICK, "row", "path", "step")
LONG = (*CASES, "longpath")
UNBOUNDED = 1 << 60
OF_TIMES = "× one pass"  # unit of the ratios of CPU times


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`peak` in MB (10⁶ bytes)."""

    tokens: int
    passes: int
    seconds: float
    peak: float
    loss: float


def samples_of(case: str, scale: float) -> tuple[list[Sample], PassBudget]:
    """The samples of a case and its budget. Raises ValueError for an unknown case."""
    if case in PATHS:
        length = round(PATHS[case] * scale)
        ids = np.random.default_rng(0).integers(0, VOCAB, length).astype(np.int32)
        uniform = np.full(length - length // 2, -np.log(VOCAB), np.float32)
        chain = Sample.of(ids[: length // 2], ids[length // 2 :], behavior_logprobs=uniform, advantage=1.0)
        if case == "step":
            return [chain], update_settings(TrainerSection()).budget
        return [chain], PassBudget(UNBOUNDED if case == "row" else 2048, UNBOUNDED)
    n = [max(2, round(tokens * scale)) for tokens in (1024, 56, 56)]
    samples = rewrites(4, 3, 6, *n)(VOCAB)
    longest = max(samples, key=lambda sample: len(sample.tokens))
    if case == "longest":
        return [longest], PassBudget(UNBOUNDED, UNBOUNDED)
    if case == "whole":
        return samples, PassBudget(UNBOUNDED, UNBOUNDED)
    if case == "bounded":
        return samples, PassBudget(len(longest.tokens) // 3, UNBOUNDED)
    raise ValueError(f"unknown case {case!r}; known: {', '.join(LONG)}")


def measure(case: str, scale: float) -> Measured:
    """Run a case in this process, which must not have held more memory before."""
    torch.set_num_threads(1)
    model = policy(2, 64, 128) if case in PATHS else policy(4)
    samples, budget = samples_of(case, scale)

    def work() -> tuple[float, float]:
        started = time.process_time()
        loss = _train(model, samples) if case == "step" else _differentiate(model, samples, budget)
        return loss, time.process_time() - started

    (loss, seconds), peak = grown(model, work)
    pack = pack_samples(samples, budget)
    return Measured(tokens=pack.plan.tokens, passes=len(pack.passes), seconds=seconds, peak=peak, loss=loss)


def _differentiate(model: nn.Module, samples: Sequence[Sample], budget: PassBudget) -> float:
    return backward(model, pack_samples(samples, budget), lambda rows, logp: -logp.sum()).loss


def _train(model: nn.Module, samples: Sequence[Sample]) -> float:
    """One train step with the trainer's defaults; its loss."""
    section = TrainerSection()
    optimizer = make_optimizer(model, optimizer_settings(section))
    metrics = train_step(model, optimizer, samples, update_settings(section), trainer_version=0)
    assert metrics.applied, metrics.skip_reason
    return metrics.loss


def bars(measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """The bars of the cases, by name; those of the path only if it was measured."""
    found: list[dict[str, Any]] = []
    for name, short, long, peak_name in (
        ("G4 × 3 rewrites × 6 turns", "bounded", "whole", "longest"),
        ("path of 32768 tokens", "path", "row", "row"),
    ):
        if short not in measured:
            continue
        candidate, time_baseline, peak_baseline = measured[short], measured[long], measured[peak_name]
        assert abs(candidate.loss - time_baseline.loss) <= 1e-4 * abs(time_baseline.loss), (
            candidate.loss,
            time_baseline.loss,
        )
        found += [
            bar(
                f"{name} in passes: peak",
                candidate.peak / peak_baseline.peak,
                "× the longest sample",
                1.0,
                at_most=True,
            ),
            bar(
                f"{name} in passes: time",
                candidate.seconds / time_baseline.seconds,
                OF_TIMES,
                1.6,
                at_most=True,
            ),
        ]
    if "path" in measured:
        found.append(bar("path of 32768 tokens: CPU", measured["path"].seconds, "s", 180.0, at_most=True))
    if "step" in measured:
        found.append(
            bar("train step on 32768 tokens: CPU", measured["step"].seconds, "s", 180.0, at_most=True)
        )
    if "longpath" in measured:
        share = measured["longpath"].peak / measured["row"].peak
        found.append(
            bar(
                "path of 196608 tokens in passes: peak",
                share,
                "× 32768 tokens in one pass",
                1.0,
                at_most=True,
            )
        )
    return found


def _fresh(case: str) -> Measured:
    """`measure` in a fresh process."""
    return Measured(**in_fresh_process("trainer.benchmarks.bounded", case))


def report(cases: Sequence[str], run: Callable[[str], Measured] = _fresh) -> list[dict[str, Any]]:
    """Measure the cases, print a table and return their bars.

    If a ratio of CPU times misses its target, all cases but `longpath` are measured once more and both times count.
    """
    print(f"\n{'in bounded memory':20}{'tokens':>8}{'passes':>8}{'CPU s':>8}{'peak MB':>9}")
    measured: dict[str, Measured] = {}
    for repeated in (False, True):
        for case in [case for case in cases if not repeated or case != "longpath"]:
            result = run(case)
            measured[case] = _together(measured[case], result) if repeated else result
            print(
                f"{case:20}{result.tokens:8d}{result.passes:8d}{result.seconds:8.2f}{result.peak:9.0f}{'  again' * repeated}",
                flush=True,
            )
        found = bars(measured)
        if all(result["holds"] for result in found if result["unit"] == OF_TIMES):
            break
    return found


def _together(first: Measured, second: Measured) -> Measured:
    """The mean of the times, the larger of the peaks."""
    seconds = (first.seconds + second.seconds) / 2
    return replace(second, seconds=seconds, peak=max(first.peak, second.peak))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=LONG)
    parser.add_argument("--scale", type=option(real, least=0.001, most=100), default=1.0)
    options = parser.parse_args()
    print(json.dumps(asdict(measure(options.case, options.scale))))


if __name__ == "__main__":
    main()
