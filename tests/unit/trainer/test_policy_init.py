"""The random policy: the same bytes for the same seed, and a directory that Hugging Face loads."""

import json
from pathlib import Path

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


def test_the_last_layers_start_as_copying_heads() -> None:
    shape = Shape()
    weights = initial_weights(shape, 400, 0)
    name = f"model.layers.{shape.layers - 1}.self_attn."
    value = weights[name + "v_proj.weight"].reshape(shape.kv_heads, shape.head_dim, shape.hidden)
    output = weights[name + "o_proj.weight"].reshape(shape.hidden, shape.heads, shape.head_dim)
    for head in range(shape.heads):
        assert (0.5 * value[head // 2] == output[:, head].T).all()


def test_the_configuration_names_the_renderer(tmp_path: Path) -> None:
    make_policy(tmp_path, seed=0)
    render = json.loads((tmp_path / "render.json").read_text())
    assert render["renderer"] == "qwen3" and render["tools_in_prompt"] is False
