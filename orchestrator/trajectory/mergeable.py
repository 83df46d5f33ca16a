"""The models for which tree merging is exact, as far as their configuration shows it: the trainer reads it from the loaded model, and the checks
before a start from config.json.

Merging is exact when a token's hidden state depends only on the ids and positions of the tokens that it sees under
full causal attention. Windows, recurrences, randomness and anything that depends on the row's length break that.
"""

from collections.abc import Callable, Mapping
from typing import Any

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


def unmergeable(read: Callable[[str], Any], values: Mapping[str, Any]) -> str | None:
    """The first feature for which merging is not exact, or None. `read` gives a value by its name, None if it is absent; `values` has all.

    >>> raw = {"model_type": "llama", "attention_dropout": 0.1}
    >>> unmergeable(raw.get, raw)
    'dropout (attention_dropout=0.1)'
    """
    layers = read("layer_types")
    kinds = [str(kind) for kind in layers] if isinstance(layers, list | tuple) else []
    if any("sliding" in kind for kind in kinds):
        return "sliding-window attention (layer_types)"
    if any("linear" in kind or "mamba" in kind or "conv" in kind or "recurrent" in kind for kind in kinds):
        return "linear or recurrent attention (layer_types)"
    for kind in kinds:
        if kind != "full_attention":
            return f"{kind} layers"
    for name in _RECURRENT:
        if read(name):
            return f"linear or recurrent attention ({name})"
    if not kinds and read("sliding_window") and _always_windowed(read):
        return f"sliding-window attention (sliding_window={read('sliding_window')})"
    for name in _SOFT_CAPS:
        if read(name):
            return f"logit soft-capping ({name}={read(name)})"
    for name in ("logit_scale", "logits_scaling"):
        if read(name) not in (None, 1, 1.0):
            return f"scaled logits ({name}={read(name)})"
    return _random(values) or _length_dependent(read("rope_parameters") or read("rope_scaling"))


def _always_windowed(read: Callable[[str], Any]) -> bool:
    """Whether no key can switch a `sliding_window` off. Qwen has one, off by default, and it may hold for some layers only."""
    return read("use_sliding_window") is None and not str(read("model_type")).startswith("qwen")


def _random(values: Mapping[str, Any]) -> str | None:
    for name, value in values.items():
        if name in _OF_OTHER_HEADS or not isinstance(value, float | int) or value <= 0:
            continue
        for word, feature in _RANDOM.items():
            if word in name:
                return f"{feature} ({name}={value})"
    return None


def _length_dependent(rope: Any) -> str | None:
    kind = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, Mapping) else None
    if kind not in _LENGTH_DEPENDENT_ROPE:
        return None
    return f"rotary frequencies that depend on the length of the row (rope_type={kind})"
