"""Sets of samples with every kind of sharing, and tiny models, for the trainer's tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from trainer.benchmarks.random_model import write_tokenizer
from trainer.samples import Ids, Sample

VOCAB = 23


class Forest:
    """Collects samples; every random number comes from one seeded generator."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.samples: list[Sample] = []

    def ids(self, n: int) -> Ids:
        return self.rng.integers(0, VOCAB, n).astype(np.int32)

    def add(self, state: Ids, action: Ids, rollout: str = "r", group: str = "g", **more: Any) -> Ids:
        """One sample with a random advantage and plausible behavior logprobs; returns state + action."""
        n = len(action)
        more.setdefault("advantage", self.rng.normal(size=n))
        sample = Sample.of(
            state,
            action,
            behavior_logprobs=self.rng.normal(-3.0, 0.5, n).astype(np.float32),
            group=group,
            rollout=rollout,
            step=len(self.samples),
            **more,
        )
        self.samples.append(sample)
        return sample.ids

    def turns(self, start: Ids, count: int, rollout: str = "r", group: str = "g", **more: Any) -> Ids:
        for _ in range(count):
            full = self.add(start, self.ids(int(self.rng.integers(2, 6))), rollout, group, **more)
            start = np.concatenate([full, self.ids(int(self.rng.integers(1, 5)))])
        return start


def append_only_chain() -> list[Sample]:
    f = Forest(1)
    f.turns(f.ids(7), 5)
    return f.samples


def group_of_rollouts() -> list[Sample]:
    """At temperatures that float32 does not hold."""
    f = Forest(2)
    for group, temperature in (("a", 0.6), ("b", 0.7)):
        prompt = f.ids(8)
        for rollout in "123":
            f.turns(prompt, 2, rollout, group, temperature=temperature)
    return f.samples


def context_rewrites() -> list[Sample]:
    """Every two turns the history behind the prompt is dropped and a summary put in its place."""
    f = Forest(3)
    prompt = f.ids(6)
    for rollout in "12":
        state = f.turns(prompt, 2, rollout)
        state = f.turns(np.concatenate([prompt, state[-3:], f.ids(3)]), 2, rollout)
        f.turns(np.concatenate([prompt, state[-2:]]), 1, rollout)
    return f.samples


def sub_agent_branches() -> list[Sample]:
    """A main line; sub-agents with prompts of their own that share only the first system tokens, and one deep fork."""
    f = Forest(4)
    system = f.ids(4)
    state = f.turns(np.concatenate([system, f.ids(5)]), 2)
    f.turns(np.concatenate([system, f.ids(3)]), 2)
    f.turns(f.ids(5), 1)
    f.turns(state, 2)
    f.turns(state[:-2], 1)
    return f.samples


def duplicates() -> list[Sample]:
    """Equal samples twice and three times, with different advantages; and equal ids cut into state and action elsewhere."""
    f = Forest(5)
    state, action = f.ids(5), f.ids(4)
    for _ in range(3):
        f.add(state, action)
    full = np.concatenate([state, action])
    f.add(full[:2], full[2:])
    f.add(f.ids(3), f.ids(2))
    return f.samples


def ends_inside_a_node() -> list[Sample]:
    f = Forest(6)
    long = f.ids(16)
    f.add(long[:9], long[9:])
    f.add(long[:3], long[3:6])
    f.add(long[:6], long[6:7])
    f.add(long[:1], long[1:2])
    return f.samples


def one_token_branches() -> list[Sample]:
    """All branches are one token long: several targets after one predictor, and branches off branches."""
    f = Forest(7)
    state = f.ids(5)
    for token in range(4):
        one = f.add(state, np.array([token], np.int32))
        for last in range(3):
            f.add(one, np.array([last], np.int32))
    return f.samples


def single_tokens() -> list[Sample]:
    """Roots without anything in common, down to a state of one token."""
    f = Forest(8)
    for token in range(3):
        f.add(np.array([token], np.int32), f.ids(1))
    return f.samples


FORESTS: dict[str, Callable[[], list[Sample]]] = {
    build.__name__: build
    for build in (
        append_only_chain,
        group_of_rollouts,
        context_rewrites,
        sub_agent_branches,
        duplicates,
        ends_inside_a_node,
        one_token_branches,
        single_tokens,
    )
}


def everything() -> list[Sample]:
    """All forests at once, as groups of their own."""
    return [sample for build in FORESTS.values() for sample in build()]


def llama() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=48,
            vocab_size=VOCAB,
            tie_word_embeddings=False,
        )
    )


def qwen3() -> Any:
    return Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=48,
            vocab_size=VOCAB,
            tie_word_embeddings=True,
        )
    )


def qwen3_moe(**changes: Any) -> Any:
    """Two layers, two of four experts per token; `changes` of its configuration."""
    shape = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        vocab_size=VOCAB,
        tie_word_embeddings=False,
    )
    config = Qwen3MoeConfig(**(shape | changes))
    config._experts_implementation = "eager"
    return Qwen3MoeForCausalLM(config)


def minimax_m2() -> Any:
    """Sigmoid routing with a correction bias that changes the choice, norms over all heads, half of each head rotated."""
    config = MiniMaxM2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rotary_dim=8,
        intermediate_size=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=VOCAB,
        bos_token_id=1,
        eos_token_id=2,
    )
    config._experts_implementation = "eager"
    model = MiniMaxM2ForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp.e_score_correction_bias.copy_(torch.tensor([0.3, -0.3, 0.0, 0.1]))
    return model


MODELS: dict[str, Callable[[], Any]] = {
    build.__name__: build for build in (llama, qwen3, qwen3_moe, minimax_m2)
}


def seeded(build: Callable[[], Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model with weights large enough that attention and routing are far from uniform."""
    torch.manual_seed(seed)
    model = build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.3 if "embed" in name else parameter.shape[-1] ** -0.5)
    return model.to(dtype)


def saved(build: Callable[[], Any], folder: Path, vocabulary: int) -> Path:
    """The directory of a seeded model with a vocabulary that a tokenizer can have."""
    policy = seeded(build)
    if policy.config.vocab_size != vocabulary:
        policy.resize_token_embeddings(vocabulary)
        torch.manual_seed(1)
        with torch.no_grad():
            for embedding in (policy.get_input_embeddings(), policy.get_output_embeddings()):
                embedding.weight.normal_(0.0, 0.3)
    policy.save_pretrained(folder)
    write_tokenizer(folder, vocabulary)
    return folder
