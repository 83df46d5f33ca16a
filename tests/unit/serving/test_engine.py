"""The engine runs commands in order between steps, and stops for good when a step fails."""

import threading
from pathlib import Path

import pytest
import torch

from orchestrator.contracts.processes import PauseMode
from trainer.benchmarks.random_model import write_random_model
from trainer.model_directory import inspect_directory, load_tokenizer
from trainer.serving.engine import Engine, EngineStopped
from trainer.serving.model import load_model
from trainer.serving.packing import Plan
from trainer.serving.protocol import GenerateRequest, Sampling
from trainer.serving.scheduler import Scheduler, Served
from trainer.serving.sequence import Sequence


def build(folder: Path) -> Scheduler:
    directory = inspect_directory(write_random_model(folder, vocab_size=300, hidden=32, layers=1, mlp=32))
    limits = {"context_length": 512, "max_total_tokens": 4096, "max_running": 4, "seed": 0}
    return Scheduler(load_model(directory), load_tokenizer(directory)[0], version="v0", **limits)


def sequence(rid: str) -> Sequence:
    request = GenerateRequest(rid=rid, ids=(5, 6), sampling=Sampling(max_new_tokens=5, ignore_eos=True))
    return Sequence(request=request, limit=5, seed=1, stop_ids=frozenset())


def test_a_submission_after_a_pause_is_held_and_runs_after_resuming(tmp_path: Path) -> None:
    ended = threading.Event()
    engine = Engine(build(tmp_path), lambda touched: ended.set(), lambda error: None)
    engine.start()
    engine.pause(PauseMode.ABORT)
    held = sequence("held")
    engine.submit(held)
    assert engine.call(lambda scheduler: len(scheduler.waiting)).result(60) == 1
    assert held.completion_tokens == 0
    engine.call(lambda scheduler: scheduler.resume())
    assert ended.wait(60)
    engine.stop(60)
    with pytest.raises(EngineStopped):
        engine.submit(sequence("late"))


def test_a_command_whose_caller_is_gone_runs_and_does_no_harm(tmp_path: Path) -> None:
    crashes: list[BaseException] = []
    engine = Engine(build(tmp_path), lambda touched: None, crashes.append)
    # Not yet started: a client that disconnects cancels it before it runs.
    given_up = engine.pause(PauseMode.ABORT)
    assert given_up.cancel()
    engine.start()
    assert engine.call(lambda scheduler: scheduler.paused).result(60) is True
    engine.stop(60)
    assert crashes == []


def test_a_failing_step_is_reported_once_and_ends_the_engine(tmp_path: Path) -> None:
    scheduler = build(tmp_path)
    crashes: list[BaseException] = []
    crashed = threading.Event()

    def on_crash(error: BaseException) -> None:
        crashes.append(error)
        crashed.set()

    class Broken:
        config = scheduler.model.config
        vocab_size = scheduler.model.vocab_size
        kv_shape = scheduler.model.kv_shape
        digest = scheduler.model.digest

        def logits(self, plan: Plan) -> torch.Tensor:
            raise MemoryError("no room for the logits")

    scheduler.served = Served(Broken(), "default")
    engine = Engine(scheduler, lambda touched: None, on_crash)
    engine.start()
    engine.submit(sequence("doomed"))
    assert crashed.wait(60)
    with pytest.raises(EngineStopped):
        engine.submit(sequence("late"))
    assert [str(error) for error in crashes] == ["no room for the logits"]
