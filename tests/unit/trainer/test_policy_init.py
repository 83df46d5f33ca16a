"""The random policy: the same bytes for the same seed, and a directory that Hugging Face loads."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from trainer.policy.init import Shape, initial_weights, make_policy
from trainer.policy.tokenizer import load_tokenizer


def test_the_same_seed_gives_the_same_directory(tmp_path: Path) -> None:
    first, second = make_policy(tmp_path / "a", seed=7), make_policy(tmp_path / "b", seed=7)
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    other = make_policy(tmp_path / "c", seed=8)
    assert (other / "model.safetensors").read_bytes() != (first / "model.safetensors").read_bytes()


def test_hugging_face_loads_the_directory_as_it_was_meant(tmp_path: Path) -> None:
    make_policy(tmp_path, seed=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.vocab_size == tokenizer.get_vocab_size()
    assert model.config.rope_parameters["rope_theta"] == Shape().rope_theta
    stops = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    assert model.generation_config.eos_token_id == stops
    assert 700_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_200_000
    expected = initial_weights(Shape(), model.config.vocab_size, 0)
    state = model.state_dict()
    assert all(torch.equal(state[name], torch.from_numpy(value)) for name, value in expected.items())


def test_the_last_layer_starts_out_writing_back_what_it_attends_to() -> None:
    shape = Shape()
    weights = initial_weights(shape, 400, 0)
    name = f"model.layers.{shape.layers - 1}.self_attn."
    value, output = weights[name + "v_proj.weight"], weights[name + "o_proj.weight"]
    assert np.allclose(value @ value.T, np.eye(len(value)), atol=1e-5)
    read = value[: shape.head_dim].T @ np.arange(shape.head_dim, dtype=np.float32)
    assert np.allclose(output[:, : shape.head_dim] @ (value[: shape.head_dim] @ read), read, atol=1e-4)


def test_every_other_writer_into_the_residual_stream_starts_at_zero() -> None:
    weights = initial_weights(Shape(), 400, 0)
    last = f"model.layers.{Shape().layers - 1}.self_attn.o_proj.weight"
    writers = {name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight"))}
    assert all((weights[name] == 0).all() == (name != last) for name in writers)


def test_the_configuration_names_the_renderer(tmp_path: Path) -> None:
    make_policy(tmp_path, seed=0)
    render = json.loads((tmp_path / "render.json").read_text())
    assert render["renderer"] == "qwen3" and render["tools_in_prompt"] is False
