"""The forward pass of Llama-like dense decoders (Llama, Qwen2, Qwen3, Mistral), straight from safetensors, fp32.

It exists because it needs no transformers import (seconds of start-up) and runs a third of the operations per layer:
queries, keys and values come from one matrix product, gate and up from another, query and key norms and the rotation
are applied to all heads at once. A test compares its logits with those of transformers. trainer.serving.hf serves all
other models.

The rotation multiplies complex numbers: rows of the query and key projections are reordered so that the two halves of
each rotated pair (i, i + d/2) are adjacent. Scores do not change, since queries and keys are reordered alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from orchestrator.runtime.weights_digest import weights_digest
from trainer.model_directory import ModelDirectory
from trainer.serving.kv import KvShape
from trainer.serving.packing import Plan, attend

ARCHITECTURES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def rope_theta(config: Mapping[str, Any]) -> float | None:
    """The base of plain rotary embeddings, or None if the model scales them in any way."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return None
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        return None
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)


def supports(config: Mapping[str, Any]) -> bool:
    """Whether this file computes exactly the model that the configuration describes."""
    windowed = config.get("use_sliding_window", config.get("architectures") == ["MistralForCausalLM"])
    return (
        (config.get("architectures") or [""])[0] in ARCHITECTURES
        and config.get("hidden_act", "silu") == "silu"
        and rope_theta(config) is not None
        and not (windowed and config.get("sliding_window"))
        and set(config.get("layer_types") or ()) <= {"full_attention"}
        and not config.get("mlp_bias")
        and "quantization_config" not in config
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One block. `qkv` [(heads + 2 kv heads) · d, hidden]; `qk_norm` [heads + kv heads, d] or None."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class DenseModel:
    """Immutable weights and their forward pass. `names` lists every parameter with its shape, as in the files."""

    def __init__(self, directory: ModelDirectory) -> None:
        """Load and check. Raises ValueError naming the tensor that is missing, misshapen, extra or not finite."""
        config = directory.config
        self.config = config
        hidden = int(config["hidden_size"])
        self._heads = int(config["num_attention_heads"])
        self._kv = int(config.get("num_key_value_heads") or self._heads)
        self._dim = int(config.get("head_dim") or hidden // self._heads)
        self._eps = float(config.get("rms_norm_eps", 1e-6))
        self._mlp = int(config["intermediate_size"])
        layers = int(config["num_hidden_layers"])
        self.vocab_size = directory.vocab_size
        self.kv_shape = KvShape(layers=layers, heads=self._kv, key_dim=self._dim, value_dim=self._dim)
        tensors = _read(directory)
        self.digest = weights_digest(directory.weight_files)
        self._embedding = _take(tensors, "model.embed_tokens.weight", (self.vocab_size, hidden))
        self._norm = _take(tensors, "model.norm.weight", (hidden,))
        if config.get("tie_word_embeddings"):
            tensors.pop("lm_head.weight", None)
            self._head = self._embedding
        else:
            self._head = _take(tensors, "lm_head.weight", (self.vocab_size, hidden))
        self._layers = [self._layer(tensors, f"model.layers.{i}.", hidden) for i in range(layers)]
        if tensors:
            raise ValueError(
                f"{directory.path} holds tensors this model does not have: {', '.join(sorted(tensors)[:3])}"
            )
        theta = rope_theta(config)
        assert theta is not None
        self._frequencies = 1.0 / (theta ** (torch.arange(0, self._dim, 2, dtype=torch.float32) / self._dim))
        self._rotations = torch.empty(0, self._dim // 2, dtype=torch.complex64)

    def _layer(self, tensors: dict[str, Tensor], prefix: str, hidden: int) -> _Layer:
        d, q, kv = self._dim, self._heads * self._dim, self._kv * self._dim
        family = str(self.config["architectures"][0])

        def take(name: str, *shape: int) -> Tensor:
            return _take(tensors, prefix + name, shape)

        attention = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        weights = {name: take(f"self_attn.{name}.weight", n, hidden) for name, n in attention.items()}
        bias: Tensor | None = None
        if family == "Qwen2ForCausalLM" or self.config.get("attention_bias"):
            parts = {name: take(f"self_attn.{name}.bias", n) for name, n in attention.items()}
            bias = torch.cat([_pair(parts["q_proj"], d), _pair(parts["k_proj"], d), parts["v_proj"]])
        norm: Tensor | None = None
        if family == "Qwen3ForCausalLM":
            q_norm, k_norm = (_pair(take(f"self_attn.{name}.weight", d), d) for name in ("q_norm", "k_norm"))
            norm = torch.cat([q_norm.expand(self._heads, d), k_norm.expand(self._kv, d)])
        out_bias = self.config.get("attention_bias") and family != "Qwen2ForCausalLM"
        return _Layer(
            norm=take("input_layernorm.weight", hidden),
            qkv=torch.cat([_pair(weights["q_proj"], d), _pair(weights["k_proj"], d), weights["v_proj"]]),
            qkv_bias=bias,
            qk_norm=norm,
            out=take("self_attn.o_proj.weight", hidden, q),
            out_bias=take("self_attn.o_proj.bias", hidden) if out_bias else None,
            mlp_norm=take("post_attention_layernorm.weight", hidden),
            gate_up=torch.cat(
                [take(f"mlp.{name}.weight", self._mlp, hidden) for name in ("gate_proj", "up_proj")]
            ),
            down=take("mlp.down_proj.weight", hidden, self._mlp),
        )

    def _rotation(self, positions: Tensor) -> Tensor:
        """e^(i · position · frequency), complex64 [N, 1, d/2]; the table doubles if a position is beyond its end."""
        need = int(positions.max()) + 1
        if need > len(self._rotations):
            table = torch.arange(max(1024, 2 ** math.ceil(math.log2(need))), dtype=torch.float32)
            angles = torch.outer(table, self._frequencies)
            self._rotations = torch.polar(torch.ones_like(angles), angles)
        return self._rotations[positions][:, None]

    def logits(self, plan: Plan) -> Tensor:
        """One pass over `plan`; fp32 [M, vocabulary] for its wanted tokens."""
        heads, kv, d, eps = self._heads, self._kv, self._dim, self._eps
        turned, scale = heads + kv, d**-0.5
        rotation = self._rotation(plan.positions)
        x = F.embedding(plan.ids, self._embedding)
        n, hidden = x.shape
        for i, layer in enumerate(self._layers):
            h = F.rms_norm(x, (hidden,), layer.norm, eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(n, turned + kv, d)
            qk = qkv[:, :turned]
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, (d,), None, eps) * layer.qk_norm
            pairs = torch.view_as_complex(qk.reshape(n, turned, d // 2, 2)) * rotation
            qk = torch.view_as_real(pairs).view(n, turned, d)
            mixed = attend(plan, i, qk[:, :heads], qk[:, heads:], qkv[:, turned:], scale)
            x = torch.addmm(x, mixed, layer.out.t())
            if layer.out_bias is not None:
                x = x + layer.out_bias
            gate_up = F.linear(F.rms_norm(x, (hidden,), layer.mlp_norm, eps), layer.gate_up)
            gate, up = gate_up[:, : self._mlp], gate_up[:, self._mlp :]
            x = torch.addmm(x, F.silu(gate) * up, layer.down.t())
        if plan.wanted is not None:
            x = x[plan.wanted]
        return F.linear(F.rms_norm(x, (hidden,), self._norm, eps), self._head)


def _read(directory: ModelDirectory) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in directory.weight_files:
        try:
            with safe_open(str(file), framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118  not a mapping
                    tensors[name] = shard.get_tensor(name).to(torch.float32)
        except Exception as error:
            raise ValueError(f"{file} cannot be read as safetensors: {error}") from error
    return tensors


def _take(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = tensors.pop(name, None)
    if tensor is None:
        raise ValueError(f"the weights lack {name}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the configuration asks for {shape}")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} holds values that are not finite")
    return tensor


def _pair(rows: Tensor, d: int) -> Tensor:
    """Reorder the rows of every head so that i and i + d/2 become 2i and 2i + 1."""
    heads = rows.shape[0] // d
    return rows.reshape(heads, 2, d // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
