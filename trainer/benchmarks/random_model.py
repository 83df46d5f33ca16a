"""A Qwen3 directory with random weights, by default in the demo policy's shape. Does not need transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A byte-level tokenizer of exactly `vocab_size` entries: three special tokens, all bytes, then made-up words."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"w{i}" for i in range(vocab_size - len(specials) - len(alphabet))]
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet])}
    assert len(vocabulary) <= vocab_size, "a byte-level vocabulary has at least 259 entries"
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer.save(str(directory / "tokenizer.json"))


def write_random_model(
    directory: Path,
    *,
    seed: int = 0,
    vocab_size: int = 640,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    mlp: int = 384,
    context_length: int = 8192,
    scale: float = 2.0,
) -> Path:
    """Write config.json, model.safetensors and tokenizer.json. `scale` sharpens the distributions (1 ≈ uniform)."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    tensors = _random_tensors(config, seed, scale)
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    write_tokenizer(directory, vocab_size)
    return directory


def _random_tensors(config: Mapping[str, Any], seed: int, scale: float) -> dict[str, torch.Tensor]:
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head_dim = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale * float(columns**-0.5))

    tensors = {
        "model.embed_tokens.weight": torch.randn(config["vocab_size"], hidden, generator=generator)
        * 0.1
        * scale,
        "model.norm.weight": torch.rand(hidden, generator=generator) + 0.5,
    }
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        tensors |= {
            at + "self_attn.q_proj.weight": matrix(heads * head_dim, hidden),
            at + "self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden),
            at + "self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, heads * head_dim),
            at + "self_attn.q_norm.weight": torch.rand(head_dim, generator=generator) + 0.5,
            at + "self_attn.k_norm.weight": torch.rand(head_dim, generator=generator) + 0.5,
            at + "input_layernorm.weight": torch.rand(hidden, generator=generator) + 0.5,
            at + "post_attention_layernorm.weight": torch.rand(hidden, generator=generator) + 0.5,
            at + "mlp.gate_proj.weight": matrix(mlp, hidden),
            at + "mlp.up_proj.weight": matrix(mlp, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, mlp),
        }
    return tensors
