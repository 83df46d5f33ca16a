"""Supervised training: the file of demonstrations, the loss weights and a few real train steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from orchestrator.contracts.marks import Finish, MarkReason, ParseStatus
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import StepKind
from orchestrator.pool.steps import StoredStep
from orchestrator.trajectory.branch import Branch
from tests.unit.trainer.forests import qwen3_moe, saved
from trainer.benchmarks.random_model import write_random_model, write_tokenizer
from trainer.model_directory import inspect_directory
from trainer.policy.init import Shape, make_policy
from trainer.policy.tokenizer import load_tokenizer
from trainer.sft.batches import demonstration_batches, loss_weights
from trainer.sft.corpus import Demonstrations, TokenRole, tokenizer_digest
from trainer.sft.samples import demonstrations_of
from trainer.sft.train import SftSettings, train, word_mask

SMALL = Shape(hidden=32, layers=2, head_dim=8, ffn=64, context=64)
WORDS = ("oak", "elm", "fig", "plum", "rose", "fern", "moss", "reed")
ONE_STEP = SftSettings(steps=1, rows=2)


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


def test_a_file_without_demonstrations_is_refused(model: Path, tmp_path: Path) -> None:
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
        word_mask(tokenizer, tokenizer.get_vocab_size()),
    )
    assert weights[: len(state)].tolist() == pytest.approx([0.0, *[0.1] * (len(state) - 1)])
    by_text = dict(
        zip([tokenizer.decode([token]) for token in action], weights[len(state) :].tolist(), strict=True)
    )
    assert by_text == {"wc": 1.0, " -": 1.0, "l": 1.0, " ": 1.0, "oak": 2.0, ".": 1.0, "md": 1.0}


def a_step(
    idx: int,
    parent: StoredStep | None,
    keep: int,
    delta: int,
    *,
    finish: Finish = Finish.STOP,
    marked: bool = False,
    actions: int = 4,
) -> StoredStep:
    """A step with `delta` more ids of state, and as many actions; its own ids are 10 · idx and above."""
    own = np.arange(10 * idx, 10 * idx + delta + actions, dtype=np.int32)
    tokens = Branch(own=own) if parent is None else Branch(own=own, parent=parent.tokens, keep_len=keep)
    kind = StepKind.ROOT if parent is None else StepKind.REWRITES
    return StoredStep(
        rollout_id=1,
        attempt=1,
        idx=idx,
        kind=kind,
        parent=None if parent is None else parent.idx,
        keep_len=keep,
        state_len=keep + delta,
        tokens=tokens,
        logprobs=np.zeros(actions, np.float32),
        spans=(VersionSpan(0, 0, actions),),
        agent="main",
        parse=ParseStatus.OK,
        marks=frozenset({MarkReason.AUXILIARY}) if marked else frozenset(),
        temperature=1.0,
        reply={},
        finish=finish,
    )


def sampled(steps: list[StoredStep]) -> list[tuple[list[int], list[int]]]:
    """(ids, those of them that are actions) of each demonstration."""
    return [
        (ids, np.array(ids)[np.array(action) == TokenRole.ACTION].tolist())
        for ids, action in demonstrations_of(steps)
    ]


def test_an_action_that_a_rewrite_shortened_is_trained_only_where_it_is_whole() -> None:
    root = a_step(0, None, 0, 2)
    rewrite, goes_on = a_step(1, root, 4, 1), a_step(2, root, 6, 1)
    assert sampled([root, rewrite, goes_on]) == [
        ([0, 1, 2, 3, 10, 11, 12, 13, 14], [11, 12, 13, 14]),
        ([0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24], [2, 3, 4, 5, 21, 22, 23, 24]),
    ]


def test_an_action_cut_by_a_token_limit_is_not_trained_and_those_around_it_are() -> None:
    root = a_step(0, None, 0, 2)
    cut = a_step(1, root, 6, 1, finish=Finish.LENGTH)
    last = a_step(2, cut, 11, 1)
    [(ids, actions)] = sampled([root, cut, last])
    assert len(ids) == 16 and actions == [2, 3, 4, 5, 21, 22, 23, 24]
    assert sampled([a_step(0, None, 0, 2, finish=Finish.LENGTH)]) == []


@pytest.mark.parametrize("fault", [{"marked": True}, {"finish": Finish.LENGTH}])
@pytest.mark.parametrize("kept", [11, 9])  # the whole action, or its start
def test_a_marked_or_cut_action_has_no_weight_and_the_tokens_around_it_keep_theirs(
    fault: dict[str, Any], kept: int, tmp_path: Path
) -> None:
    root = a_step(0, None, 0, 2)
    faulty = a_step(1, root, 6, 1, **fault)
    last = a_step(2, faulty, kept, 1)
    Demonstrations.of(demonstrations_of([root, faulty, last]), tokenizer="x").save(tmp_path / "file")
    demonstrations = Demonstrations.load(tmp_path / "file", tokenizer="x")
    words = np.zeros(64, np.bool_)
    found = [demonstrations[index] for index in range(len(demonstrations))]
    weights = np.concatenate([loss_weights(ids, action, words)[1:] for ids, action in found])
    own = {
        id_: set(weights[np.concatenate([ids[1:] for ids, _ in found]) == id_].tolist()) for id_ in range(25)
    }
    assert all(own[id_] == {0.0} for id_ in (11, 12, 13, 14)[: kept - 7]), "the faulty action"
    assert all(own[id_] == {1.0} for id_ in (21, 22, 23, 24)), "the last action"
    tenth = float(np.float32(0.1))
    assert all(own[id_] == {tenth} for id_ in (1, 10, 20)) and all(1.0 in own[id_] for id_ in (2, 3, 4, 5))
    batch = next(
        demonstration_batches(demonstrations, words, rows=len(found), random=np.random.default_rng(0))
    )
    assert batch.action.sum() == 8 and (batch.weight[batch.action] == 1).all()


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 320 embeddings, whose tokenizer has 300 ids."""
    directory = tmp_path_factory.mktemp("padded")
    write_random_model(
        directory, vocab_size=320, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=24
    )
    write_tokenizer(directory, 300)
    return directory


def with_id(token: int, model: Path, file: Path) -> Path:
    """A file with one demonstration that has `token` both as state and as action."""
    sample = [5, token, token, 7], [False, False, True, True]
    Demonstrations.of([sample], tokenizer=tokenizer_digest(model)).save(file)
    return file


@pytest.mark.parametrize("token", [299, 300, 319])
def test_ids_of_embeddings_without_a_token_are_trained_like_others(
    token: int, padded: Path, tmp_path: Path
) -> None:
    file = with_id(token, padded, tmp_path / "file")
    result = train(file, padded, tmp_path / "out", seed=0, settings=ONE_STEP, progress=lambda _: None)
    assert result.steps == 1 and np.isfinite(result.loss)


def test_ids_without_an_embedding_are_refused_before_anything_is_written(
    padded: Path, tmp_path: Path
) -> None:
    file = with_id(320, padded, tmp_path / "file")
    with pytest.raises(ValueError, match=r"has the token 320, but .* only knows the ids below 320: name the"):
        train(file, padded, tmp_path / "out", seed=0, settings=ONE_STEP, progress=lambda _: None)
    assert not (tmp_path / "out").exists()


def test_an_epoch_shows_every_demonstration_once(model: Path, toy: Demonstrations) -> None:
    tokenizer = load_tokenizer(model)
    words = word_mask(tokenizer, tokenizer.get_vocab_size())
    batches = demonstration_batches(toy, words, rows=3, random=np.random.default_rng(0))
    epoch = [next(batches) for _ in range(3)]
    shown = sorted(tuple(row[row > 0]) for batch in epoch for row in batch.ids)
    assert shown == sorted(tuple(toy[index][0]) for index in range(len(toy)))
    assert all((batch.weight[batch.action] >= 1).all() for batch in epoch)


def test_the_rate_rises_stays_and_falls() -> None:
    settings = SftSettings(steps=1000, learning_rate=1.0)
    assert settings.rate(0) == pytest.approx(1 / 30)
    assert settings.rate(29) == settings.rate(400) == 1.0
    assert settings.rate(700) == pytest.approx(0.525)
    assert settings.rate(999) == pytest.approx(0.05, abs=0.01)


def test_a_few_steps_lower_the_loss_and_the_same_seed_gives_the_same_weights(
    model: Path, toy_file: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    settings = SftSettings(steps=40, rows=8, learning_rate=1e-2, warm_up=5)
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


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_after_saving_one_set_of_weights_is_there_and_nothing_else_is_touched(
    model: Path, toy_file: Path, tmp_path: Path
) -> None:
    sharded, out = tmp_path / "sharded", tmp_path / "out"
    seen = AutoModelForCausalLM.from_pretrained(model)
    seen.save_pretrained(sharded, max_shard_size="20KB")
    shutil.copy(model / "tokenizer.json", sharded)
    (sharded / "pytorch_model.bin").write_bytes(b"the same in another format")
    assert len(list(sharded.glob("model-*-of-*.safetensors"))) > 1
    shutil.copytree(sharded, out)
    theirs = {
        "toy.safetensors": toy_file.read_bytes(),
        "model.safetensors.md": b"notes",
        "model-card.txt": b"",
    }
    for name, content in theirs.items():
        (out / name).write_bytes(content)
    for given in (sharded, out):  # into a directory that has weights, then in place
        before = files_of(out)
        train(toy_file, given, out, seed=0, settings=ONE_STEP, progress=lambda _: None)
        assert files_of(out).keys() == {
            *theirs,
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "sft.json",
            "model.safetensors",
        }
        assert {name: files_of(out)[name] for name in theirs} == theirs
        assert files_of(out)["model.safetensors"] != before.get("model.safetensors")
    assert inspect_directory(out).weight_files == (out / "model.safetensors",)


def test_weights_are_saved_under_the_names_of_published_checkpoints(tmp_path: Path) -> None:
    directory, out = saved(qwen3_moe, tmp_path / "moe", 259), tmp_path / "out"
    demonstrations = tmp_path / "file"
    Demonstrations.of([([1, 2, 3], [False, True, True])], tokenizer=tokenizer_digest(directory)).save(
        demonstrations
    )
    train(demonstrations, directory, out, seed=0, settings=ONE_STEP, progress=lambda _: None)
    before, after = (load_file(one / "model.safetensors") for one in (directory, out))
    assert {name: value.shape for name, value in after.items()} == {
        name: value.shape for name, value in before.items()
    }
    assert not torch.equal(before["model.norm.weight"], after["model.norm.weight"])


def test_a_model_that_lacks_a_weight_is_refused_rather_than_trained_from_random_numbers(
    model: Path, toy_file: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"do not fit its configuration: model\.layers\.1\.mlp\.up_proj"):
        train(toy_file, broken, tmp_path / "out", seed=0, settings=ONE_STEP, progress=lambda _: None)
    assert not (tmp_path / "out").exists()


def test_padding_changes_no_logit_of_a_demonstration(model: Path, toy: Demonstrations) -> None:
    network = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.from_numpy(toy[0][0].astype(np.int64))[None]
    padded = torch.nn.functional.pad(ids, (0, 5))
    with torch.no_grad():
        alone, in_batch = network(input_ids=ids).logits, network(input_ids=padded).logits[:, : ids.shape[1]]
    assert torch.allclose(alone, in_batch, atol=1e-6)
