"""Checkpoints: whole or absent, verified before use, and exact on resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM

from tests.unit.trainer.forests import VOCAB, everything, group_of_rollouts, qwen3, seeded
from trainer.canary import make_canary
from trainer.checkpoint import (
    Checkpoint,
    TrainerState,
    list_checkpoints,
    open_checkpoint,
    restore_optimizer,
    save_checkpoint,
)
from trainer.model import check_vocabulary, load_model, tokenizer_files
from trainer.ranks.learner import restore_moments
from trainer.tree.forward import attach_tree_attention
from trainer.update import OptimizerSettings, UpdateSettings, make_optimizer, train_step

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def write_tokenizer(directory: Path, size: int = VOCAB) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {f"w{i}": i for i in range(size)}
    Tokenizer(WordLevel(vocabulary, unk_token="w0")).save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


def trained(steps: int = 1) -> tuple[Any, torch.optim.Optimizer]:
    model = seeded(qwen3)
    attach_tree_attention(model)
    optimizer = make_optimizer(model, OptimizerSettings())
    for _ in range(steps):
        assert train_step(model, optimizer, everything(), UpdateSettings(), trainer_version=0).applied
    return model, optimizer


def save(root: Path, tokenizer: Path, version: int = 1) -> tuple[Checkpoint, Any, torch.optim.Optimizer]:
    model, optimizer = trained()
    state = TrainerState(version=version, batch_no=version - 1, train_steps=2 * version, extra={"seed": 7})
    return (
        save_checkpoint(root, model, optimizer, state, tokenizer=tokenizer, canary_ids=IDS),
        model,
        optimizer,
    )


def test_resuming_continues_exactly_as_if_nothing_had_happened(tmp_path: Path, tokenizer: Path) -> None:
    saved, model, optimizer = save(tmp_path / "run", tokenizer)
    opened = open_checkpoint(saved.path)
    assert opened == saved and opened.state.extra == {"seed": 7}
    resumed = load_model(opened.path)
    resumed_optimizer = make_optimizer(resumed, OptimizerSettings())
    restore_optimizer(opened, resumed, resumed_optimizer)
    for _ in range(2):
        uninterrupted = train_step(model, optimizer, group_of_rollouts(), UpdateSettings(), trainer_version=1)
        again = train_step(
            resumed, resumed_optimizer, group_of_rollouts(), UpdateSettings(), trainer_version=1
        )
        assert again == uninterrupted
    others = dict(resumed.named_parameters())
    assert all(torch.equal(p, others[name]) for name, p in model.named_parameters())


def test_a_checkpoint_is_a_plain_hugging_face_directory(tmp_path: Path, tokenizer: Path) -> None:
    saved, _, _ = save(tmp_path / "run", tokenizer)
    assert [path.name for path in saved.path.glob("*.safetensors")] == ["model.safetensors"]
    assert (saved.path / "tokenizer.json").read_bytes() == (tokenizer / "tokenizer.json").read_bytes()
    assert (saved.path / "chat_template.jinja").is_file()
    plain = AutoModelForCausalLM.from_pretrained(saved.path)
    logp = plain(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1).detach()
    served = [float(logp[i, token]) for i, token in enumerate(IDS[1:])]
    assert saved.canary.ids == tuple(IDS)
    assert saved.canary.logprobs == pytest.approx(served, abs=1e-5)
    with torch.no_grad():
        next(plain.parameters()).add_(0.05)
    logp = plain(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1).detach()
    changed = [float(logp[i, token]) for i, token in enumerate(IDS[1:])]
    assert saved.canary.logprobs != pytest.approx(changed, abs=0.02)


def test_every_file_is_covered_and_any_flipped_byte_is_named(tmp_path: Path, tokenizer: Path) -> None:
    saved, _, _ = save(tmp_path / "run", tokenizer)
    files = [path for path in saved.path.rglob("*") if path.is_file() and path.name != "manifest.json"]
    listed = json.loads((saved.path / "manifest.json").read_text())["files"]
    assert sorted(listed) == sorted(path.relative_to(saved.path).as_posix() for path in files)
    for path in files:
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        for content, fault in ((bytes(bad), "does not match its sha256"), (good[:-1], "bytes, not")):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=rf"corrupt checkpoint: .*{path.name} .*{fault}"):
                open_checkpoint(saved.path)
        path.unlink()
        with pytest.raises(ValueError, match=rf"corrupt checkpoint: .*{path.name} is missing"):
            open_checkpoint(saved.path)
        path.write_bytes(good)
    assert open_checkpoint(saved.path) == saved


def test_a_broken_manifest_is_named(tmp_path: Path, tokenizer: Path) -> None:
    saved, _, _ = save(tmp_path / "run", tokenizer)
    manifest = saved.path / "manifest.json"
    for content, fault in (('{"schema"', "is not a manifest"), ("{}", "is not a manifest")):
        manifest.write_text(content)
        with pytest.raises(ValueError, match=fault):
            open_checkpoint(saved.path)
    manifest.unlink()
    with pytest.raises(ValueError, match=r"has no manifest\.json"):
        open_checkpoint(saved.path)


def test_checkpoints_are_listed_newest_first_and_a_torn_one_is_refused(
    tmp_path: Path, tokenizer: Path
) -> None:
    root = tmp_path / "run"
    assert list_checkpoints(root) == []
    first, _, _ = save(root, tokenizer, 9)
    second, _, _ = save(root, tokenizer, 10)
    assert list_checkpoints(root) == [second.path, first.path]
    (second.path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        open_checkpoint(second.path)


def test_a_failed_write_leaves_the_older_checkpoints_only(tmp_path: Path, tokenizer: Path) -> None:
    root = tmp_path / "run"
    first, model, optimizer = save(root, tokenizer, 1)
    (root / ".writing-version-000007").mkdir()  # left behind by a killed trainer
    state = TrainerState(version=2, batch_no=1, train_steps=4)
    with pytest.raises(ValueError, match="has no tokenizer"):
        save_checkpoint(root, model, optimizer, state, tokenizer=tmp_path / "nowhere", canary_ids=IDS)
    assert [path.name for path in root.iterdir()] == [first.path.name]
    assert open_checkpoint(list_checkpoints(root)[0]) == first


def test_writing_an_uncommitted_version_again_replaces_it(tmp_path: Path, tokenizer: Path) -> None:
    root = tmp_path / "run"
    first, model, optimizer = save(root, tokenizer)
    train_step(model, optimizer, everything(), UpdateSettings(), trainer_version=0)
    again = save_checkpoint(root, model, optimizer, first.state, tokenizer=tokenizer, canary_ids=IDS)
    assert again.path == first.path and again.manifest_sha != first.manifest_sha
    assert [path.name for path in root.iterdir()] == [first.path.name]


def test_a_fresh_optimizer_can_be_saved_and_restored(tmp_path: Path, tokenizer: Path) -> None:
    model, optimizer = trained(0)
    state = TrainerState(version=0, batch_no=None, train_steps=0)
    saved = save_checkpoint(tmp_path, model, optimizer, state, tokenizer=tokenizer, canary_ids=IDS)
    restore_optimizer(saved, model, optimizer)
    assert saved.state.batch_no is None
    assert train_step(model, optimizer, everything(), UpdateSettings(), trainer_version=0).applied


def test_optimizer_state_of_another_model_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    saved, _, _ = save(tmp_path / "run", tokenizer)
    stranger = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="which the model does not train"):
        restore_optimizer(saved, stranger, torch.optim.AdamW(stranger.parameters()))


def test_optimizer_state_of_another_shape_is_refused_by_its_name(tmp_path: Path, tokenizer: Path) -> None:
    saved, model, optimizer = save(tmp_path / "policies", tokenizer)
    file = saved.path / "trainer" / "optimizer.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("q_proj.weight/exp_avg"))
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, file)
    restores: tuple[Callable[[], object], ...] = (
        lambda: restore_optimizer(saved, model, optimizer),
        lambda: restore_moments(saved.path / "trainer", model, optimizer),  # of many ranks
    )
    for restore in restores:
        with pytest.raises(ValueError, match=r"has state of another shape for 'model.layers.*q_proj.weight'"):
            restore()


def test_a_bad_model_directory_gets_one_clear_sentence(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_model(tmp_path)
    directory = tmp_path / "model"
    seeded(qwen3).save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layers.1.mlp.up" not in k}, directory / "model.safetensors"
    )
    with pytest.raises(
        ValueError, match=r"do not fit its configuration: model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load_model(directory)
    (directory / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_model(directory)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no \*\.safetensors"):
        load_model(directory)
    with pytest.raises(ValueError, match="has no tokenizer"):
        tokenizer_files(directory)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    model = seeded(qwen3)
    check_vocabulary(model, tokenizer)
    with pytest.raises(
        ValueError, match=f"vocabulary mismatch .* has {VOCAB + 1} ids, the model only {VOCAB}"
    ):
        check_vocabulary(model, write_tokenizer(tmp_path / "larger", VOCAB + 1))


def test_a_canary_needs_two_tokens() -> None:
    model = seeded(qwen3)
    attach_tree_attention(model)
    assert len(make_canary(model, IDS[:2]).logprobs) == 1
    with pytest.raises(ValueError, match="at least 2"):
        make_canary(model, [1])
