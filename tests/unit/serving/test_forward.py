"""Both forward passes give transformers' logits, over packed batches, in one piece and in several."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainer.benchmarks.random_model import write_random_model, write_tokenizer
from trainer.model_directory import inspect_directory
from trainer.serving.dense import DenseModel, supports
from trainer.serving.hf import HfModel
from trainer.serving.kv import KvPool
from trainer.serving.model import Model, load_model
from trainer.serving.packing import Feed, pack

SMALL = {
    "vocab_size": 300,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save(config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    write_tokenizer(folder, 300)
    return folder


def packed_logits(model: Model, sequences: list[list[int]], pieces: list[list[int]]) -> list[torch.Tensor]:
    """Logits of every token, fed piece by piece: `pieces[i]` are the lengths in which sequence i is fed."""
    pool = KvPool(model.kv_shape, 1024, 8192)
    rows = [pool.place(len(ids)) for ids in sequences]
    fed = [0] * len(sequences)
    out: list[list[torch.Tensor]] = [[] for _ in sequences]
    with torch.inference_mode():
        for turn in range(max(len(one) for one in pieces)):
            who = [i for i, one in enumerate(pieces) if turn < len(one)]
            feeds = []
            for i in who:
                ids = sequences[i][fed[i] : fed[i] + pieces[i][turn]]
                feeds.append(
                    Feed(arena=rows[i].arena, row=rows[i].index, start=fed[i], tokens=ids, wanted=len(ids))
                )
                fed[i] += len(ids)
            plan, order = pack(feeds)
            logits = model.logits(plan)
            at = 0
            for position in order:
                count = len(feeds[position].tokens)
                out[who[position]].append(logits[at : at + count])
                at += count
    return [torch.cat(one) for one in out]


SEQUENCES = [[(5 * i + 7 * n) % 290 + 3 for i in range(n)] for n in (40, 300, 41, 7)]
PIECES = [[30] + [1] * 10, [200, 100], [30] + [1] * 11, [7]]


def assert_equal_to_transformers(model: Model, folder: Path, tolerance: float) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    for ours, ids in zip(packed_logits(model, SEQUENCES, PIECES), SEQUENCES, strict=True):
        with torch.no_grad():
            theirs = reference(input_ids=torch.tensor([ids])).logits[0]
        spread = float(theirs.std())
        assert spread > 0.05, "logits that are all alike would prove nothing"
        assert float((ours - theirs).abs().max()) < tolerance * max(1.0, spread)


@pytest.mark.parametrize(
    "config",
    [
        transformers.Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
        transformers.Qwen2Config(**SMALL, tie_word_embeddings=False),
        transformers.LlamaConfig(**SMALL, attention_bias=True, rope_theta=500.0),
    ],
    ids=["qwen3", "qwen2", "llama"],
)
def test_the_dense_forward_pass_gives_transformers_logits(config: Any, tmp_path: Path) -> None:
    folder = save(config, tmp_path)
    model = load_model(inspect_directory(folder))
    assert isinstance(model, DenseModel)
    assert_equal_to_transformers(model, folder, 2e-5)


@pytest.mark.parametrize(
    "config",
    [
        transformers.Gemma2Config(**SMALL, head_dim=16, sliding_window=24),  # softcap and a sliding window
        transformers.GptOssConfig(**SMALL, head_dim=16, num_local_experts=4, sliding_window=24),  # sinks
        transformers.Qwen3MoeConfig(
            **SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
        ),
        transformers.GPT2Config(
            vocab_size=300, n_embd=48, n_layer=2, n_head=4, n_positions=1024, eos_token_id=2, bos_token_id=1
        ),
    ],
    ids=["gemma2", "gpt_oss", "qwen3_moe", "gpt2"],
)
def test_any_other_causal_model_runs_through_transformers_with_our_attention(
    config: Any, tmp_path: Path
) -> None:
    folder = save(config, tmp_path)
    model = load_model(inspect_directory(folder))
    assert isinstance(model, HfModel)
    assert_equal_to_transformers(model, folder, 1e-4)


def test_a_model_that_mixes_tokens_without_attention_is_refused(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4)
    folder = save(config, tmp_path)
    text = (folder / "config.json").read_text().replace("{", '{"max_position_embeddings": 512,', 1)
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match="MambaForCausalLM does not fit this server"):
        load_model(inspect_directory(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        {"use_sliding_window": True, "sliding_window": 128},
        {"hidden_act": "gelu"},
        {"architectures": ["Qwen3MoeForCausalLM"]},
        {"quantization_config": {"bits": 4}},
    ],
)
def test_the_dense_forward_pass_declines_what_it_does_not_compute(
    change: dict[str, Any], tmp_path: Path
) -> None:
    config = dict(inspect_directory(write_random_model(tmp_path, hidden=32, layers=1)).config)
    assert supports(config)
    assert not supports({**config, **change})


def test_weights_in_bfloat16_shards_are_served_in_fp32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=16)).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    served = load_model(inspect_directory(tmp_path))
    (logits,) = packed_logits(served, [SEQUENCES[0]], [[40]])
    reference = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        theirs = reference(input_ids=torch.tensor([SEQUENCES[0]])).logits[0]
    assert logits.dtype == torch.float32
    assert float((logits - theirs).abs().max()) < 1e-5
