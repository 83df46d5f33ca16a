"""A random Qwen3 policy of about 0.9 million parameters, as a Hugging Face directory.

The initialisation is *mimetic*: the last two layers start out as copying heads (each output projection is half the transpose of
its value projection, and keys resemble queries, so that a token attends to its own kind). Supervised training has only
about a hundred CPU-seconds, and copying a name from the task into a command is what it has to find.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from trainer.policy import template
from trainer.policy.tokenizer import END_OF_TEXT, SPECIAL, TURN_END, build_tokenizer

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the policy; every projection is `[out, in]`, as in a Hugging Face state dict."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 384
    context: int = 2048
    rope_theta: float = 10_000.0


def make_policy(out: Path, *, seed: int, shape: Shape | None = None) -> Path:
    """Write config.json, generation_config.json, model.safetensors, the tokenizer and render.json into `out`.

    The same seed gives the same bytes. `config.vocab_size == len(tokenizer)`. Returns `out`.
    """
    shape = shape or Shape()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    vocabulary = tokenizer.get_vocab()
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(out / "tokenizer_config.json", _tokenizer_config(shape))
    _write_json(out / template.RENDER_FILE, template.RENDER)
    _write_json(out / "config.json", _config(shape, vocabulary))
    _write_json(
        out / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 1.0,
            "eos_token_id": [vocabulary[TURN_END], vocabulary[END_OF_TEXT]],
            "pad_token_id": vocabulary[END_OF_TEXT],
        },
    )
    weights = initial_weights(shape, len(vocabulary), seed)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(
        0o644
    )  # the library makes it 0600; a rollout server may be another user
    return out


def initial_weights(shape: Shape, vocabulary: int, seed: int) -> dict[str, Array]:
    """State dict of a tied-embedding Qwen3 model, float32: N(0, 1/fan_in), writers into the residual stream halved."""
    random = np.random.default_rng(seed)

    def normal(rows: int, columns: int, scale: float) -> Array:
        return (random.standard_normal((rows, columns), dtype=np.float32) * scale).astype(np.float32)

    def fan_in(rows: int, columns: int) -> Array:
        return normal(rows, columns, columns**-0.5)

    def ones(size: int) -> Array:
        return np.ones(size, dtype=np.float32)

    query_width, key_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights: dict[str, Array] = {
        "model.embed_tokens.weight": normal(vocabulary, shape.hidden, 0.02),
        "model.norm.weight": ones(shape.hidden),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        query, key = fan_in(query_width, shape.hidden), fan_in(key_width, shape.hidden)
        value, output = fan_in(key_width, shape.hidden), 0.5 * fan_in(shape.hidden, query_width)
        if layer >= shape.layers // 2:
            key, output = _copying(query, key, value, shape)
        weights |= {
            name + "self_attn.q_proj.weight": query,
            name + "self_attn.k_proj.weight": key,
            name + "self_attn.v_proj.weight": value,
            name + "self_attn.o_proj.weight": output,
            name + "self_attn.q_norm.weight": ones(shape.head_dim),
            name + "self_attn.k_norm.weight": ones(shape.head_dim),
            name + "mlp.gate_proj.weight": fan_in(shape.ffn, shape.hidden),
            name + "mlp.up_proj.weight": fan_in(shape.ffn, shape.hidden),
            name + "mlp.down_proj.weight": 0.5 * fan_in(shape.hidden, shape.ffn),
            name + "input_layernorm.weight": ones(shape.hidden),
            name + "post_attention_layernorm.weight": ones(shape.hidden),
        }
    return {name: np.ascontiguousarray(value) for name, value in weights.items()}


def _copying(query: Array, key: Array, value: Array, shape: Shape) -> tuple[Array, Array]:
    """Keys mixed half and half with the queries that read them, and `output = 0.5 valueᵀ` per head."""
    shared = shape.heads // shape.kv_heads  # query heads per key-value head
    by_head = (shape.kv_heads, shape.head_dim, shape.hidden)
    first_query = query.reshape(shape.kv_heads, shared, shape.head_dim, shape.hidden)[:, 0]
    mixed = (0.5 * key.reshape(by_head) + 0.5 * first_query).reshape(key.shape)
    per_query_head = np.repeat(value.reshape(by_head), shared, axis=0)
    return mixed, 0.5 * per_query_head.reshape(query.shape).T


def _config(shape: Shape, vocabulary: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": vocabulary[TURN_END],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": vocabulary[END_OF_TEXT],
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": len(vocabulary),
    }


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.context,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL),
        "clean_up_tokenization_spaces": False,
        "chat_template": template.CHAT_TEMPLATE,
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
