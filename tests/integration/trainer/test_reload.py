"""A checkpoint is loaded again in a living trainer: one learner at a time, and errors of the load blame what is at fault."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.trainer import TrainerSection
from tests.integration.trainer.rig import Pool, model, pool
from trainer import learner as learner_module
from trainer.checkpoint import DamagedCheckpoint
from trainer.failures import NoMemory
from trainer.learner import Learners
from trainer.ranks import learner as ranks_learner
from trainer.ranks.learner import serve
from trainer.ranks.process_group import Ranks
from trainer.ranks.rendezvous import End, LoadOrder

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]


class Cyclic:
    """Part of a cycle of references, as a model that is spread over ranks."""

    def __init__(self) -> None:
        self.tree_pass = MethodType(lambda _: None, self)


async def test_a_trainer_drops_its_learner_before_it_loads_the_next(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = await pool.trainer(await pool.run())
    network: Any = trainer.learner._model
    network.tree_pass = MethodType(lambda _: None, network)
    before = [weakref.ref(trainer.learner), weakref.ref(network)]
    del network
    alive: list[bool] = []
    load = Learners.resume

    def resume(learners: Learners, *given: Any) -> Any:
        alive.extend(past() is not None for past in before)
        return load(learners, *given)

    monkeypatch.setattr(Learners, "resume", resume)
    await trainer.resume()
    assert alive == [False, False] and trainer.learner.version == 0


def test_another_rank_drops_its_learner_before_it_loads_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Cyclic]] = []
    alive: list[bool] = []

    def opened(*_: Any) -> None:
        alive.extend(past() is not None for past in made)

    def loaded(*_: Any, **__: Any) -> Cyclic:
        made.append(weakref.ref(learner := Cyclic()))
        return learner

    monkeypatch.setattr(ranks_learner, "_opened", opened)
    monkeypatch.setattr(ranks_learner, "SpreadLearner", loaded)
    orders: Iterator[Any] = iter([LoadOrder("", "", 0), LoadOrder("", "", 0), End()])
    given: Any = SimpleNamespace(next=lambda: next(orders))
    nowhere: Any = None
    serve(nowhere, given, TrainerSection())
    assert alive == [False]


def test_ranks_agree_on_the_kind_of_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(1, 2, torch.device("cpu"))
    sent: list[Any] = []

    def exchange(message: Any) -> list[Any]:
        sent.append(message)
        return [None, message]

    monkeypatch.setattr(ranks, "exchange", exchange)
    for error in (ConfigurationError("lower trainer.lora_rank"), ValueError("no model")):
        with (
            pytest.raises(ValueError, match=f"^rank 1: {error}$") as raised,
            ranks.agreeing(ConfigurationError, ValueError),
        ):
            raise error
        assert raised.type is type(error)
    with ranks.agreeing(ConfigurationError, ValueError):
        sent.append("no error")
    assert sent[-1] is None


@pytest.mark.parametrize("rank", [0, 1])
def test_files_that_only_another_rank_finds_damaged_are_no_reason_to_give_a_batch_up(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(rank, 2, torch.device("cpu"))
    monkeypatch.setattr(ranks, "exchange", lambda message: [None] * rank + [message])
    with pytest.raises(ValueError, match="it has no manifest") as raised:
        ranks_learner._opened(Path("/nowhere"), "", ranks)
    assert isinstance(raised.value, DamagedCheckpoint) is (rank == 0)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            r"^the GPU has no memory left to load .*trainer\.ranks",
        ),
        (MemoryError(), "^this host has no memory left"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "^this host has no memory left"),
    ],
)
async def test_a_machine_without_memory_for_the_learner_is_named_in_one_sentence(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def without_memory(*_: Any) -> Any:
        raise error

    trainer = await pool.trainer(await pool.run())
    monkeypatch.setattr(Learners, "resume", without_memory)
    with pytest.raises(NoMemory, match=sentence):
        await trainer.resume()


async def test_only_damaged_files_are_a_reason_to_give_a_batch_up(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.run()
    trainer = await pool.trainer(run)

    async def sentence(error: Exception) -> str:
        def load(*_: Any) -> Any:
            raise error

        with monkeypatch.context() as patch, pytest.raises(ConfigurationError) as stopped:
            patch.setattr(learner_module, "load_model", load)
            await trainer.resume()
        return str(stopped.value)

    cause = "the model cannot be loaded: can't allocate memory"
    assert (await sentence(ValueError(cause))).startswith(f"{cause}; the files of the checkpoint are as they")
    assert await sentence(ConfigurationError("lower trainer.lora_rank")) == "lower trainer.lora_rank"
    directory = Path((await pool.newest(run)).path)
    manifest = directory / "manifest.json"
    published = manifest.read_bytes()
    manifest.write_bytes(published.replace(b"penstock.checkpoint/1", b"penstock.checkpoint/9"))
    with pytest.raises(
        ConfigurationError, match=r"checkpoint/9'; this version reads .*; the files of the checkpoint are"
    ):
        await trainer.resume()
    manifest.write_bytes(published)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(ConfigurationError, match=r"does not match its sha256; restore it from a copy$"):
        await trainer.resume()
