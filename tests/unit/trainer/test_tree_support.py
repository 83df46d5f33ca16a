"""Models for which merging is not exact are refused, with the feature named."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, Qwen3ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from orchestrator.trajectory.branch import Branch
from tests.unit.trainer.forests import VOCAB, group_of_rollouts, llama, qwen3, seeded
from trainer.tree.forward import attach_tree_attention
from trainer.tree.plan import FlatTree

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("kind", "options", "feature"),
    [
        ("mistral", {"sliding_window": 4}, "sliding-window attention"),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "sliding-window",
        ),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, "logit soft-capping"),
        ("gemma2", {}, "sliding-window attention"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 2, "num_local_experts": 2}, "attention sinks"),
        (
            "qwen3_next",
            {"layer_types": ["linear_attention", "full_attention"]},
            "linear or recurrent attention",
        ),
        ("mamba", {}, "linear or recurrent attention"),
        ("llama", {"attention_dropout": 0.1}, r"dropout \(attention_dropout=0.1\)"),
        ("gpt2", {}, "dropout"),
        (
            "opt",
            {"ffn_dim": 32, "word_embed_proj_dim": 32, "dropout": 0.0, "layerdrop": 0.5},
            r"layers dropped at random \(layerdrop=0.5\)",
        ),
        (
            "minimax_m2",
            {"router_jitter_noise": 0.1, "num_local_experts": 2, "num_experts_per_tok": 1},
            r"router jitter, random in training \(router_jitter_noise=0.1\)",
        ),
        ("cohere", {"logit_scale": 0.5}, "scaled logits"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "depend on the length of the row",
        ),
        ("nemotron", {}, "layers that do not hand on to their attention what they are called with"),
        ("doge", {}, "layers with an attention mask of their own"),
        ("bloom", {"hidden_dropout": 0.0, "attention_dropout": 0.0}, "attention layers of its own kind"),
    ],
)
def test_an_unsupported_model_is_refused_by_the_name_of_the_feature(
    kind: str, options: dict[str, Any], feature: str
) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **options}))
    model.train()
    with pytest.raises(ValueError, match=rf"does not support {kind}: it has .*{feature}"):
        attach_tree_attention(model)
    assert model.training and not model.config._attn_implementation.startswith("penstock")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gpt_neox", {"classifier_dropout": 0.1}),
        ("gpt2", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "summary_first_dropout": 0.1}),
    ],
)
def test_a_model_is_not_refused_for_the_dropout_of_a_head_that_no_causal_model_has(
    kind: str, options: dict[str, Any]
) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **options}))
    attach_tree_attention(model)
    assert model.config._attn_implementation == "penstock_tree"


def test_the_probe_catches_an_inexact_model_that_its_configuration_does_not_show() -> None:
    class Doubled(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            result = super().forward(*args, **kwargs)
            result.logits = result.logits * 2
            return result

    model = Doubled(llama().config)
    with pytest.raises(ValueError, match="not exact for llama: merged and plain logprobs of a probe differ"):
        attach_tree_attention(model)
    assert model.config._attn_implementation == "eager"


def test_the_probe_catches_what_is_random_in_training_and_named_by_no_configuration() -> None:
    model = llama()
    model.model.layers[0].mlp = torch.nn.Sequential(model.model.layers[0].mlp, torch.nn.Dropout(0.2))
    model.eval()
    with pytest.raises(
        ValueError, match="not exact for llama: two forward passes of a probe in training mode"
    ):
        attach_tree_attention(model)
    assert model.config._attn_implementation == "eager" and not model.training


def test_an_attached_model_refuses_a_call_without_a_plan() -> None:
    model: Qwen3ForCausalLM = seeded(qwen3)
    attach_tree_attention(model)
    with pytest.raises(ValueError, match="call it with tree="):
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)


@pytest.mark.parametrize(
    ("option", "feature"),
    [
        ({"sliding_window": 4}, r"sliding-window attention \(sliding_window\)"),
        ({"softcap": 30.0}, r"logit soft-capping \(softcap\)"),
        ({"s_aux": torch.zeros(4)}, r"attention sinks \(s_aux\)"),
        ({"position_bias": torch.zeros(4)}, r"a position bias \(position_bias\)"),
        ({"dropout": 0.1}, r"dropout \(0\.1\)"),
    ],
)
@pytest.mark.parametrize("backend", ["penstock_tree", "penstock_tree_dense", "penstock_tree_flex"])
def test_every_backend_refuses_what_a_layer_asks_of_it_beyond_causal_attention(
    backend: str, option: dict[str, Any], feature: str
) -> None:
    plan = FlatTree([Branch(own=sample.ids) for sample in group_of_rollouts()]).plan
    q = torch.zeros(1, 2, plan.tokens, 16)
    attention = ALL_ATTENTION_FUNCTIONS[backend]
    with pytest.raises(ValueError, match=f"prefix-tree merging does not support {feature}"):
        attention(torch.nn.Module(), q, q, q, None, tree=plan, **option)
    with pytest.raises(ValueError, match="takes its visibility from the plan, not from an attention mask"):
        attention(torch.nn.Module(), q, q, q, torch.zeros(1, 1, plan.tokens, plan.tokens), tree=plan)
