"""The GPU section of `ops/bench tree`: bfloat16, FlexAttention, contexts up to 128K, where there is a CUDA device.

As the trainer has it with `trainer.dtype = "bfloat16"`: weights and gradients in float32, passes in bfloat16 (mixed_precision.py).
A Qwen3 of 0.6 billion parameters and a mixture of experts of 1.3 billion (0.4 of them at work per token), random weights, activation checkpointing.
Tree and packed rows have the same kernels, head and budget of tokens per pass. Time is wall time until the device is done, planning included; the
methods are timed in turns (turns.py). Memory is the most that torch had allocated at once. Run alone: `python -m trainer.benchmarks.gpu [--json]`.
"""

import argparse
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from trainer.activation_checkpointing import checkpoint_activations
from trainer.benchmarks.rows import BASELINES
from trainer.benchmarks.shapes import Shape, group
from trainer.benchmarks.turns import Race, flops
from trainer.mixed_precision import compute_in
from trainer.samples import Sample
from trainer.tree.attention import Backend
from trainer.tree.execute import backward
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import Pack, pack_samples
from trainer.tree.passes import PassBudget

ROUNDS = 3
NOTHING = "no CUDA device: the GPU section is not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExtent:
    """`pass_tokens`: of the tree's passes and of a micro-batch of rows. `most`: operations of a baseline that are timed per shape."""

    device: str
    dtype: torch.dtype
    backend: Backend
    models: Mapping[str, Callable[[], Any]]
    shapes: Sequence[Shape]
    pass_tokens: int
    most: float


def dense(hidden: int, layers: int, heads: int, mlp: int, vocab: int) -> Any:
    """A Qwen3 on the default device; a key head per two query heads."""
    return Qwen3ForCausalLM(Qwen3Config(**_sizes(hidden, layers, heads, vocab), intermediate_size=mlp))


def mixture(hidden: int, layers: int, heads: int, mlp: int, vocab: int, experts: int, top_k: int) -> Any:
    """A Qwen3-MoE; `mlp` is one expert's."""
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_sizes(hidden, layers, heads, vocab),
            intermediate_size=mlp,
            moe_intermediate_size=mlp,
            num_experts=experts,
            num_experts_per_tok=top_k,
            decoder_sparse_step=1,
            norm_topk_prob=True,
        )
    )


def _sizes(hidden: int, layers: int, heads: int, vocab: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": 2 * hidden // heads,
        "vocab_size": vocab,
        "max_position_embeddings": 1 << 18,
        "tie_word_embeddings": True,
    }


FULL = GpuExtent(
    device="cuda",
    dtype=torch.bfloat16,
    backend="flex",
    models={
        "Qwen3, 0.6 B": partial(dense, 1024, 28, 16, 3072, 151_936),
        "Qwen3-MoE, 1.3 B": partial(mixture, 1024, 12, 16, 768, 151_936, experts=40, top_k=4),
    },
    shapes=(
        Shape(name="chain of 32 turns to 32K", build=group(1, 32, 8192, 256, 512)),
        Shape(name="G8 × 8 turns, prompt 8K", build=group(8, 8, 8192, 128, 256)),
        Shape(name="G4 × 2 turns, prompt 126K", build=group(4, 2, 126 << 10, 512, 1024)),
    ),
    pass_tokens=32_768,
    most=1.5e16,
)


def report(extent: GpuExtent = FULL) -> list[dict[str, Any]]:
    """Print a table per model and return its rows. If the device is missing, print a line that states it and return none."""
    if extent.device == "cuda" and not torch.cuda.is_available():
        print(NOTHING, flush=True)
        return []
    print(_title(extent), flush=True)
    found = []
    for name, make in extent.models.items():
        model = _placed(make, extent)
        print(
            f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:,.0f} million parameters", flush=True
        )
        for shape in extent.shapes:
            found += _measured(name, model, shape, extent)
        del model
    return found


def _title(extent: GpuExtent) -> str:
    device = torch.cuda.get_device_name() if extent.device == "cuda" else extent.device
    about = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{device}, {str(extent.dtype).removeprefix('torch.')}, {extent.backend}, passes of {extent.pass_tokens:,} tokens; {about}"


def _placed(make: Callable[[], Any], extent: GpuExtent) -> Any:
    torch.manual_seed(0)
    with torch.device(extent.device):
        model = make()
    attach_tree_attention(model, extent.backend)
    compute_in(model, extent.dtype)
    checkpoint_activations(model)
    model.train()
    return model


def _measured(name: str, model: Any, shape: Shape, extent: GpuExtent) -> list[dict[str, Any]]:
    samples = shape.build(model.config.vocab_size)
    methods = _methods(samples, extent.pass_tokens)
    for make in methods.values():  # kernels are compiled and memory is reserved before anything is timed
        _work(model, make()[-1])
    race = Race(model, methods, rounds=ROUNDS, most=extent.most, clock=partial(_now, extent.device))
    race.run()
    tree = race.timed["tree"]
    rows = [
        {
            "model": name,
            "shape": shape.name,
            "method": method,
            "samples": len(samples),
            "tokens": timed.tokens,
            "token_bound": timed.tokens / tree.tokens,
            "flop_bound": timed.bound(tree),
            "speed_up": timed.over(tree),
            "seconds": timed.seconds,
            "tflops": timed.flops / timed.seconds / 1e12,
            "planning_s": timed.planning,
            "timed": timed.share,
            "peak_gib": _peak(model, methods[method], extent.device),
        }
        for method, timed in race.timed.items()
    ]
    print(*_lines(shape, rows), sep="\n", flush=True)
    return rows


def _methods(samples: Sequence[Sample], pass_tokens: int) -> dict[str, Callable[[], list[Pack]]]:
    tree: dict[str, Callable[[], list[Pack]]] = {
        "tree": lambda: [pack_samples(samples, PassBudget(pass_tokens, 1 << 60))]
    }
    rows = {name: partial(BASELINES[name], samples, pass_tokens) for name in ("varlen", "rollout")}
    return tree | rows


def _work(model: Any, pack: Pack) -> None:
    backward(model, pack, lambda rows, logp: -logp.sum())
    model.zero_grad()


def _now(device: str) -> float:
    """Seconds: process time on a CPU; on a GPU wall time, after all queued work is done."""
    if device != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _peak(model: Any, make: Callable[[], list[Pack]], device: str) -> float | None:
    """GiB at the method's largest pack, weights and gradients included; None on a CPU, where peaks.py measures it."""
    if device != "cuda":
        return None
    largest = max(make(), key=lambda pack: flops(model, [pack]))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _work(model, largest)
    return torch.cuda.max_memory_allocated() / 2**30


def _lines(shape: Shape, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = (
        "tokens",
        "token bound",
        "FLOP bound",
        "speed-up",
        "of the bound",
        "s",
        "TFLOP/s",
        "timed",
        "peak GiB",
    )
    lines = [
        f"{shape.name}: {rows[0]['samples']} samples",
        f"  {'':8}" + "".join(f"{name:>13}" for name in head),
    ]
    for row in rows:
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        cells = (
            f"{row['tokens']:,}",
            f"{row['token_bound']:.2f}×",
            f"{row['flop_bound']:.2f}×",
            f"{row['speed_up']:.2f}×",
            f"{row['speed_up'] / row['flop_bound']:.0%}",
            f"{row['seconds']:.2f}",
            f"{row['tflops']:.3g}",
            f"{row['timed']:.0%}",
            peak,
        )
        lines.append(f"  {row['method']:8}" + "".join(f"{cell:>13}" for cell in cells))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object, its rows")
    options = parser.parse_args()
    rows = report()
    if options.json:
        print(json.dumps({"bars": [], "rows": rows}))
