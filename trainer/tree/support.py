"""The models for which tree merging is exact. All others are refused; the error names the feature that breaks exactness.

`orchestrator.trajectory.mergeable` has the features that a configuration shows. A loaded model shows more.
"""

from typing import Any

from torch import nn

from orchestrator.trajectory.mergeable import unmergeable


def refuse_unsupported(model: nn.Module) -> None:
    """Raise ValueError naming the first feature of a Hugging Face causal LM for which prefix-tree merging is not exact."""
    config: Any = model.config
    feature = _unsupported_feature(model, config)
    if feature is not None:
        raise ValueError(f"prefix-tree merging does not support {config.model_type}: it has {feature}")


def _unsupported_feature(model: nn.Module, config: Any) -> str | None:
    if feature := unmergeable(lambda name: getattr(config, name, None), config.to_dict()):
        return feature
    window = getattr(config, "sliding_window", None)
    if window and not getattr(config, "layer_types", None) and getattr(config, "use_sliding_window", True):
        return f"sliding-window attention (sliding_window={window})"
    if any(name.rsplit(".", 1)[-1] == "sinks" for name, _ in model.named_parameters()):
        return "attention sinks"
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder"
    if not getattr(type(model), "_supports_attention_backend", False):
        return "attention layers of its own kind (not through transformers' AttentionInterface)"
    return None
