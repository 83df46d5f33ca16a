"""Checkpoints share unchanged files, and each stays whole and verified by itself."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from orchestrator.runtime import failpoints
from orchestrator.runtime.failpoints import HITS
from tests.unit.trainer.forests import append_only_chain, minimax_m2, qwen3, seeded
from tests.unit.trainer.test_checkpoint import IDS, write_tokenizer
from trainer.checkpoint import (
    Checkpoint,
    TrainerState,
    discard,
    open_checkpoint,
    remove_discarded,
    restore_optimizer,
    save_checkpoint,
)
from trainer.files import split
from trainer.model import load_model
from trainer.model_directory import inspect_directory
from trainer.tree.forward import attach_tree_attention
from trainer.update import OptimizerSettings, UpdateSettings, make_optimizer, train_step

SMALL = 8192  # bytes a shard: a tiny model has many
LAST = "model.layers.1."


class Line:
    """One model in training and its versions. Only the last layer is trained, unless `everything_trains`."""

    def __init__(
        self, place: Path, *, family: Callable[[], nn.Module] = qwen3, everything_trains: bool = False
    ) -> None:
        self.root = place / "run"
        self.tokenizer = write_tokenizer(place / "tokenizer")
        self.model: Any = seeded(family)
        attach_tree_attention(self.model)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(everything_trains or name.startswith(LAST))
        self.optimizer = make_optimizer(self.model, OptimizerSettings())
        self.newest: Checkpoint | None = None

    def train(self) -> None:
        assert train_step(
            self.model, self.optimizer, append_only_chain(), UpdateSettings(), trainer_version=0
        ).applied

    def save(self, version: int) -> Checkpoint:
        self.newest = save_checkpoint(
            self.root,
            self.model,
            self.optimizer,
            TrainerState(version=version, batch_no=version - 1, train_steps=version),
            tokenizer=self.newest.path if self.newest else self.tokenizer,
            canary_ids=IDS,
            parent=self.newest,
            shard_bytes=SMALL,
        )
        return self.newest

    def two(self) -> tuple[Checkpoint, Checkpoint]:
        first = self.save(1)
        self.train()
        return first, self.save(2)


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in checkpoint.path.glob("model*.safetensors")
        for name, tensor in load_file(file).items()
    }


def shared(first: Checkpoint, second: Checkpoint) -> set[str]:
    return {
        name
        for name in second.files
        if name in first.files and (first.path / name).samefile(second.path / name)
    }


def test_what_is_not_trained_is_linked_and_what_is_trained_is_written(tmp_path: Path) -> None:
    line = Line(tmp_path)
    first, second = line.two()
    assert first.written is not None and (first.written.linked_files, first.written.linked_bytes) == (0, 0)
    index = json.loads((second.path / "model.safetensors.index.json").read_text())["weight_map"]
    trained = {file for tensor, file in index.items() if tensor.startswith(LAST)}
    frozen = {file for tensor, file in index.items() if not tensor.startswith(LAST)}
    assert len(trained) > 1 and len(frozen) > 1 and not trained & frozen
    same = shared(first, second)
    assert frozen | {"tokenizer.json", "config.json", "model.safetensors.index.json"} <= same
    assert not same & (trained | {"trainer/state.json"})
    took = second.written
    assert took is not None and took.seconds > 0
    assert took.linked_files == len(same) and took.written_files == len(second.files) - len(same)
    assert took.linked_bytes == sum(second.files[name].bytes for name in same)
    assert took.written_bytes == sum(entry.bytes for name, entry in second.files.items() if name not in same)


def test_no_shard_is_larger_than_the_bound_unless_one_tensor_is() -> None:
    tensors = {name: torch.zeros(n) for name, n in (("a", 3), ("b", 4), ("c", 9), ("d", 1), ("e", 7))}
    assert [list(part) for part in split(tensors, 32)] == [["a", "b"], ["c"], ["d", "e"]]
    assert list(split({}, 32)) == [{}]


@pytest.mark.parametrize("family", [qwen3, minimax_m2])
def test_the_shards_hold_what_the_library_would_save_and_load_again_with_the_optimizer(
    tmp_path: Path, family: Callable[[], nn.Module]
) -> None:
    line = Line(tmp_path, family=family)
    _, saved = line.two()
    line.model.save_pretrained(tmp_path / "plain")
    plain, ours = load_file(tmp_path / "plain" / "model.safetensors"), weights(saved)
    assert plain.keys() == ours.keys() and all(torch.equal(plain[name], ours[name]) for name in plain)
    for name in ("config.json", "generation_config.json"):
        assert (saved.path / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    served = inspect_directory(saved.path).weight_files
    assert {file.name for file in served} == {file.name for file in saved.path.glob("model-*.safetensors")}
    again: Any = load_model(saved.path)
    for name, parameter in again.named_parameters():
        parameter.requires_grad_(name.startswith(LAST))
    optimizer = make_optimizer(again, OptimizerSettings())
    restore_optimizer(saved, again, optimizer)
    assert len(list((saved.path / "trainer").glob("optimizer-*.safetensors"))) > 1
    for mine, other in zip(line.model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other)
        state, restored = line.optimizer.state.get(mine, {}), optimizer.state.get(other, {})
        assert state.keys() == restored.keys() and all(torch.equal(state[k], restored[k]) for k in state)


def test_deleting_either_of_two_versions_leaves_the_other_whole(tmp_path: Path) -> None:
    line = Line(tmp_path)
    first, second = line.two()
    assert shared(first, second)
    discard(first.path)
    remove_discarded(line.root)
    assert not first.path.exists() and open_checkpoint(second.path) == second
    third = line.save(3)
    assert shared(second, third)
    shutil.rmtree(third.path)
    assert open_checkpoint(second.path) == second


def test_a_flipped_bit_in_a_shared_file_is_found_in_both_versions_and_not_carried_into_the_next(
    tmp_path: Path,
) -> None:
    line = Line(tmp_path)
    first, second = line.two()
    name = next(name for name in sorted(shared(first, second)) if name.endswith(".safetensors"))
    with (first.path / name).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    for damaged in (first, second):
        with pytest.raises(ValueError, match=rf"corrupt checkpoint: .*{name} does not match its sha256"):
            open_checkpoint(damaged.path)
    third = line.save(3)
    assert open_checkpoint(third.path) == third and name not in shared(second, third)
    assert third.files[name] == second.files[name]


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM])
def test_where_no_link_can_be_made_the_bytes_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refuse)
    first, second = Line(tmp_path).two()
    assert not shared(first, second) and open_checkpoint(second.path) == second
    assert second.written is not None and second.written.linked_files == 0


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Arms a point once; checks at the end that it was reached."""
    points = tmp_path / "points"
    points.mkdir()
    monkeypatch.setattr(failpoints, "directory", points)
    names = []

    def arm(point: str, action: str) -> None:
        names.append(f"{point} {action} ")
        (points / point).write_text(action + "\n")

    yield arm
    hits = (points / HITS).read_text()
    assert all(name in hits for name in names)


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("checkpoint.link.before", "raise"),
        ("checkpoint.link.after", "raise"),
        ("checkpoint.link", "duplicate"),
    ],
)
def test_a_link_that_fails_or_is_made_twice_is_written_instead_and_never_through_the_older_name(
    tmp_path: Path, armed: Callable[[str, str], None], point: str, action: str
) -> None:
    line = Line(tmp_path)
    first = line.save(1)
    armed(point, action)
    second = line.save(2)
    assert open_checkpoint(first.path) == first and open_checkpoint(second.path) == second
    same = shared(first, second)
    assert len(same) == len(second.files) - 2, "all but the one of the fault and the state of the trainer"


def test_a_failed_fsync_of_a_linked_file_leaves_the_older_version_whole_and_nothing_else(
    tmp_path: Path, armed: Callable[[str, str], None]
) -> None:
    line = Line(tmp_path)
    first = line.save(1)
    armed("checkpoint.sync.before", "raise")
    with pytest.raises(OSError, match="no space"):
        line.save(2)
    assert [path.name for path in line.root.iterdir()] == [first.path.name]
    assert open_checkpoint(first.path) == first
    assert shared(first, line.save(2)), "and the next try shares as ever"


def test_a_version_whose_weights_did_not_move_costs_its_state_alone(tmp_path: Path) -> None:
    line = Line(tmp_path, everything_trains=True)
    line.train()
    line.save(1)
    took = line.save(2).written
    assert took is not None and took.written_files == 1 and took.written_bytes < 500 < took.linked_bytes


def test_a_checkpoint_of_an_earlier_release_opens_and_is_shared_with(tmp_path: Path) -> None:
    """One file of weights and one file of the optimizer, both written by the library."""
    line = Line(tmp_path, everything_trains=True)
    line.train()
    made = line.save(1)
    for shard in [*made.path.glob("model*.safetensors*"), *made.path.glob("trainer/optimizer*.safetensors")]:
        shard.unlink()
    line.model.save_pretrained(made.path)
    names = {parameter: name for name, parameter in line.model.named_parameters()}
    state = {
        f"{names[parameter]}/{key}": value
        for parameter, values in line.optimizer.state.items()
        for key, value in values.items()
    }
    save_file(state, made.path / "trainer" / "optimizer.safetensors")
    manifest = json.loads((made.path / "manifest.json").read_text())
    manifest["files"] = {
        path.relative_to(made.path).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": path.stat().st_size,
        }
        for path in sorted(made.path.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
    (made.path / "manifest.json").write_text(json.dumps(manifest, indent=1))
    opened = open_checkpoint(made.path)
    model = load_model(opened.path)
    optimizer = make_optimizer(model, OptimizerSettings())
    restore_optimizer(opened, model, optimizer)
    assert all(
        torch.equal(value, optimizer.state[other][key])
        for mine, other in zip(line.model.parameters(), model.parameters(), strict=True)
        for key, value in line.optimizer.state[mine].items()
    )
    line.newest = opened
    assert {"tokenizer.json", "config.json"} <= shared(opened, line.save(2))


@pytest.mark.parametrize("weight_map", [None, ["a"], {"a": 1}, {"a": "../model.safetensors"}])
def test_an_index_that_does_not_name_files_next_to_it_is_refused(tmp_path: Path, weight_map: Any) -> None:
    saved = Line(tmp_path).save(1)
    index = saved.path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"index\.json has no weight_map from tensors to files next to it"):
        inspect_directory(saved.path)
