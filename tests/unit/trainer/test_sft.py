"""Supervised training: the file of demonstrations, the loss weights and a few real train steps."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from trainer.policy.init import Shape, make_policy
from trainer.policy.tokenizer import load_tokenizer
from trainer.sft.batches import demonstration_batches, loss_weights
from trainer.sft.corpus import Demonstrations, tokenizer_digest
from trainer.sft.train import Settings, train, word_mask

SMALL = Shape(hidden=32, layers=2, head_dim=8, ffn=64, context=64)
WORDS = ("oak", "elm", "fig", "plum", "rose", "fern", "moss", "reed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), seed=0, shape=SMALL)


@pytest.fixture(scope="module")
def toy(model: Path) -> Demonstrations:
    """`count WORD.txt` must be answered with `wc WORD.txt`."""
    encode = load_tokenizer(model).encode
    pairs = [(encode(f"count {word}.txt\n").ids, encode(f"wc {word}.txt").ids) for word in WORDS]
    samples = [(state + action, [False] * len(state) + [True] * len(action)) for state, action in pairs]
    return Demonstrations.of(samples, tokenizer=tokenizer_digest(model))


@pytest.fixture(scope="module")
def toy_file(toy: Demonstrations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demonstrations") / "toy.safetensors"
    toy.save(path)
    return path


def test_a_file_of_demonstrations_reads_back_as_it_was_written(
    model: Path, toy: Demonstrations, toy_file: Path
) -> None:
    read = Demonstrations.load(toy_file, tokenizer=tokenizer_digest(model))
    assert len(read) == len(WORDS)
    for index in range(len(WORDS)):
        assert all(np.array_equal(a, b) for a, b in zip(read[index], toy[index], strict=True))


def test_a_file_made_with_another_tokenizer_is_refused(toy_file: Path) -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        Demonstrations.load(toy_file, tokenizer="0" * 64)


def test_a_file_that_is_no_demonstrations_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not safetensors")
    for path in (tmp_path / "text", tmp_path / "absent", model / "model.safetensors"):
        with pytest.raises(ValueError, match="is not a file of demonstrations"):
            Demonstrations.load(path, tokenizer="")


def test_large_vocabularies_take_wider_ids(tmp_path: Path) -> None:
    for largest, width in ((65_535, np.uint16), (65_536, np.uint32)):
        Demonstrations.of([([1, largest], [False, True])], tokenizer="x").save(tmp_path / "file")
        ids, _ = Demonstrations.load(tmp_path / "file", tokenizer="x")[0]
        assert ids.dtype == width and ids.tolist() == [1, largest]


@pytest.mark.parametrize("impossible", [-1, 1 << 32])
def test_an_id_that_no_file_can_hold_is_refused(impossible: int) -> None:
    with pytest.raises(ValueError, match="token ids must lie between"):
        Demonstrations.of([([1, impossible], [False, True])], tokenizer="")


def test_words_copied_from_the_state_weigh_double_and_given_tokens_a_tenth(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    state, action = tokenizer.encode("count oak.txt\n").ids, tokenizer.encode("wc -l oak.md").ids
    weights = loss_weights(
        np.array(state + action, np.uint16),
        np.array([0] * len(state) + [1] * len(action), np.uint8),
        word_mask(tokenizer),
    )
    assert weights[: len(state)].tolist() == pytest.approx([0.0, *[0.1] * (len(state) - 1)])
    by_text = dict(
        zip([tokenizer.decode([token]) for token in action], weights[len(state) :].tolist(), strict=True)
    )
    assert by_text == {"wc": 1.0, " -": 1.0, "l": 1.0, " ": 1.0, "oak": 2.0, ".": 1.0, "md": 1.0}


def test_an_epoch_shows_every_demonstration_once(model: Path, toy: Demonstrations) -> None:
    words = word_mask(load_tokenizer(model))
    batches = demonstration_batches(toy, words, rows=3, random=np.random.default_rng(0))
    epoch = [next(batches) for _ in range(3)]
    shown = sorted(tuple(row[row > 0]) for batch in epoch for row in batch.ids)
    assert shown == sorted(tuple(toy[index][0]) for index in range(len(toy)))
    assert all((batch.weight[batch.action] >= 1).all() for batch in epoch)


def test_the_rate_rises_stays_and_falls() -> None:
    settings = Settings(steps=1000, learning_rate=1.0)
    assert settings.rate(0) == pytest.approx(1 / 30)
    assert settings.rate(29) == settings.rate(400) == 1.0
    assert settings.rate(700) == pytest.approx(0.525)
    assert settings.rate(999) == pytest.approx(0.05, abs=0.01)


def test_a_few_steps_lower_the_loss_and_the_same_seed_gives_the_same_weights(
    model: Path, toy_file: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    settings = Settings(steps=40, rows=8, learning_rate=1e-2, warm_up=5)
    lines: list[str] = []
    result = train(toy_file, model, tmp_path / "a", seed=3, settings=settings, progress=lines.append)
    assert result.loss < 0.5 * result.loss_first
    assert result.accuracy > 0.8
    assert len(lines) == 1 and lines[0].startswith("sft 40/40")
    assert json.loads((tmp_path / "a" / "sft.json").read_text())["loss"] == result.loss
    train(toy_file, model, tmp_path / "b", seed=3, settings=settings, progress=lines.append)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert first.keys() == load_file(model / "model.safetensors").keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    copied = {path.name for path in (tmp_path / "a").iterdir()} - {"sft.json"}
    assert copied == {path.name for path in model.iterdir()}


def test_padding_changes_no_logit_of_a_demonstration(model: Path, toy: Demonstrations) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.from_numpy(toy[0][0].astype(np.int64))[None]
    padded = torch.nn.functional.pad(ids, (0, 5))
    with torch.no_grad():
        alone, beside = network(input_ids=ids).logits, network(input_ids=padded).logits[:, : ids.shape[1]]
    assert torch.allclose(alone, beside, atol=1e-6)
