"""Scenarios of ranks_at_work.py: what two ranks save, one rank or two continue."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.unit.trainer import forests
from tests.unit.trainer.ranks_rig import ARGUMENTS, Scenario, patient, weights, worst
from trainer.batch import BatchPart
from trainer.benchmarks.random_model import write_random_model
from trainer.checkpoint import Checkpoint, open_checkpoint, optimizer_tensors
from trainer.learner import Learner, save_first
from trainer.optimizer_shards import stored
from trainer.ranks.learner import LeadingLearners, serve
from trainer.ranks.rank_env import Place
from trainer.ranks.rendezvous import following, leading


def resumed_with_adapters(rank: int) -> Scenario:
    """As `resumed`, with adapters of this rank; also compares the files of both ranks' checkpoint with those of one rank's."""

    def scenario(place: Place, directory: Path) -> Any:
        section = patient(lora_rank=rank).trainer
        directory = directory / f"adapters {rank}"
        found = resumed(place, directory, lora_rank=rank)
        if place.rank:
            return None
        checkpoints = [open_checkpoint(directory / "changed" / f"version-00000{n}") for n in (2, 3)]
        first, (second, third) = open_checkpoint(directory / "alone" / "version-000001"), checkpoints
        same = Learner(second, section).save(directory / "same", 2, 1, b"")
        return found | {
            "moved": worst(adapter_of(second), adapter_of(first)),
            "moments of": sorted(
                {key.split("/")[0].split(".")[-3] for key in stored(second.path / "trainer")}
            ),
            "same": {
                name: same.files.get(name) == entry
                for name, entry in second.files.items()
                if name.endswith(".safetensors") and "/shard-" not in name
            },
            "linked": {"one to two": linked(first, second), "two to one": linked(second, third)},
        }

    return scenario


def adapter_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return dict(load_file(checkpoint.path / "trainer/adapter.safetensors"))


def linked(older: Checkpoint, newer: Checkpoint) -> list[str]:
    """The weights that are one file in both."""
    return sorted(
        name
        for name in newer.files
        if name.endswith(".safetensors")
        and name in older.files
        and (newer.path / name).samefile(older.path / name)
    )


def resumed(place: Place, directory: Path, **trainer: Any) -> Any:
    """A checkpoint of one rank is continued by two, and their checkpoint by one; compared with one rank all the way."""
    configured = patient(**trainer)
    section = configured.trainer
    batches = [
        [BatchPart(build(), [])]
        for build in (forests.group_of_rollouts, forests.context_rewrites, forests.group_of_rollouts)
    ]
    if place.rank:
        with following(place, ARGUMENTS) as (ranks, orders, config):
            serve(ranks, orders, config.trainer)
        return None
    model = write_random_model(
        directory / "model", vocab_size=259, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=24
    )
    alone = Learner(save_first(directory / "alone", model, section), section)
    for number, parts in enumerate(batches):
        alone.train(parts)
        saved = alone.save(directory / "alone", number + 1, number, b"")
        if number == 0:
            first = saved
    with leading(place, configured, ARGUMENTS) as (ranks, orders):
        learner = LeadingLearners(ranks, orders).at(first, section)
        learner.train(batches[1])
        second = learner.save(directory / "changed", 2, 1, b"")
        whole_again = Learner(second, section)
    whole_again.train(batches[2])
    third = whole_again.save(directory / "changed", 3, 2, b"")
    return {
        "weights": worst(weights(whole_again._model), weights(alone._model)),
        "moments": worst(
            optimizer_tensors(whole_again._model, whole_again._optimizer),
            optimizer_tensors(alone._model, alone._optimizer),
        ),
        "files": sorted(name for name in second.files if name.startswith("trainer/")),
        "canary": max(
            abs(ours - theirs)
            for ours, theirs in zip(third.canary.logprobs, saved.canary.logprobs, strict=True)
        ),
    }
