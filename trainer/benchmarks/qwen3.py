"""The timed policy: a small Qwen3 with random weights."""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainer.tree.forward import attach_tree_attention

VOCAB = 2048


def policy(layers: int = 2, hidden: int = 256, mlp: int = 768) -> Any:
    """float32, four heads, two query heads to each of key and value, the tree's attention for all methods."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        intermediate_size=mlp,
        vocab_size=VOCAB,
        max_position_embeddings=1 << 18,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    attach_tree_attention(model)
    return model
