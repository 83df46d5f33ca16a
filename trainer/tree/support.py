"""The models for which tree merging is exact. All others are refused; the error names the feature that breaks exactness.

Merging is exact when a token's hidden state depends only on the ids and positions of the tokens that it sees under
full causal attention. Windows, recurrences, randomness and anything that depends on the row's length break that.
"""

from typing import Any

from torch import nn

_RECURRENT = (
    "layers_block_type",
    "mamba_d_state",
    "linear_num_key_heads",
    "ssm_cfg",
    "state_size",
    "conv_L_cache",
)
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "attention_logit_cap")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_RANDOM = {
    "dropout": "dropout",
    "pdrop": "dropout",
    "layerdrop": "layers dropped at random",
    "jitter": "router jitter, random in training",
}
_OF_OTHER_HEADS = (
    "classifier_dropout",
    "summary_first_dropout",
    "summary_last_dropout",
)  # no causal LM applies them


def refuse_unsupported(model: nn.Module) -> None:
    """Raise ValueError naming the first feature of a Hugging Face causal LM for which prefix-tree merging is not exact."""
    config: Any = model.config
    feature = _unsupported_feature(model, config)
    if feature is not None:
        raise ValueError(f"prefix-tree merging does not support {config.model_type}: it has {feature}")


def _unsupported_feature(model: nn.Module, config: Any) -> str | None:
    kinds = list(getattr(config, "layer_types", None) or [])
    if any("sliding" in kind for kind in kinds):
        return "sliding-window attention (layer_types)"
    if any("linear" in kind or "mamba" in kind or "conv" in kind or "recurrent" in kind for kind in kinds):
        return "linear or recurrent attention (layer_types)"
    for kind in kinds:
        if kind != "full_attention":
            return f"{kind} layers"
    for name in _RECURRENT:
        if getattr(config, name, None):
            return f"linear or recurrent attention ({name})"
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"sliding-window attention (sliding_window={config.sliding_window})"
    for name in _SOFT_CAPS:
        if getattr(config, name, None):
            return f"logit soft-capping ({name}={getattr(config, name)})"
    for name in ("logit_scale", "logits_scaling"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            return f"scaled logits ({name}={getattr(config, name)})"
    if any(name.rsplit(".", 1)[-1] == "sinks" for name, _ in model.named_parameters()):
        return "attention sinks"
    for name, value in config.to_dict().items():
        if name in _OF_OTHER_HEADS or not isinstance(value, float | int) or value <= 0:
            continue
        for word, feature in _RANDOM.items():
            if word in name:
                return f"{feature} ({name}={value})"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
        return f"rotary frequencies that depend on the length of the row (rope_type={rope['rope_type']})"
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder"
    if not getattr(type(model), "_supports_attention_backend", False):
        return "attention layers of its own kind (not through transformers' AttentionInterface)"
    return None
