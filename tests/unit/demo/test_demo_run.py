"""The demo's configuration: a user's file, the loss and advantages of the defaults, an end by train steps."""

from pathlib import Path

import pytest

from ops.lab.demo.prepare import write_run
from orchestrator.settings.config import Config, load


def written(root: Path, *, control: bool = False, train_steps: int = 40) -> Config:
    directory = write_run(
        root,
        seed=3,
        model=root,
        seconds=60.0,
        train_steps=train_steps,
        scaffolds={"shell": 1.0},
        sandbox="bubblewrap",
        control=control,
    )
    return load(directory / "penstock.toml")


def test_the_demo_trains_by_the_loss_and_the_rewards_of_the_defaults(tmp_path: Path) -> None:
    config, plain = written(tmp_path), Config()
    assert config.reward == plain.reward
    own = {"lr", "parts", "permute_advantages"}
    given, default = config.trainer.model_dump(), plain.trainer.model_dump()
    assert {key for key in given if given[key] != default[key]} <= own
    assert config.trainer.negative_scale == 1 and not config.reward.advantage_std


@pytest.mark.parametrize("control", [False, True])
def test_the_control_differs_in_the_permutation_alone(tmp_path: Path, control: bool) -> None:
    config = written(tmp_path, control=control)
    assert config.trainer.permute_advantages is control
    assert config.model_copy(update={"trainer": None}) == written(tmp_path / "other").model_copy(
        update={"trainer": None, "policy": config.policy}
    )


def test_the_loop_ends_after_its_train_steps_or_its_time(tmp_path: Path) -> None:
    stage = written(tmp_path).stage
    assert stage.reached(batches=19, train_steps=38, seconds=59) is None
    assert stage.reached(batches=20, train_steps=40, seconds=59) is not None
    assert stage.reached(batches=1, train_steps=2, seconds=60) is not None
    unbounded = written(tmp_path / "other", train_steps=0).stage
    assert unbounded.reached(batches=900, train_steps=1800, seconds=59) is None
