"""Two ranks against a real data pool: they train the same as one; a rank that dies ends the update, and the resumed training is the same bit
for bit."""

import asyncio
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from sqlalchemy import select

from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import close_intake
from orchestrator.pool.tables import policy_versions, train_steps
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import Timeouts
from tests.builders import Author, make_run, ready_groups
from tests.integration.trainer.rig import SUBJECT, model
from tests.services import Databases
from trainer.checkpoint import open_checkpoint

__all__ = ["model"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("trainer")]

RUN = "ranks"
LIVES_S = 500.0
SILENCE_S = Timeouts().rank_silence_s  # after it a rank is lost without a sign of its death
SO = "so the trainer ends; nothing was saved over, and its next start goes on from the last commit"
TIMES = {"wall_s", "cpu_s", "seconds", "checkpoint"}


@dataclass(frozen=True)
class World:
    """A copy of the prepared run and the directory where its trainer writes; the end of each life, and everything that they left."""

    url: str
    policies: Path
    lives: list[dict[str, Any]]

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.policies / RUN).glob("version-*"))

    def files(self) -> dict[str, str]:
        root = self.policies / RUN
        return {
            path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    async def rows(self) -> tuple[list[Any], list[Any]]:
        """Versions, and the metrics of train steps without times."""
        version, step = policy_versions.c, train_steps.c
        async with open_engine(self.url, name="test") as engine, engine.connect() as connection:
            versions = await connection.execute(
                select(version.version, version.batch_no, version.manifest_sha).order_by(version.version)
            )
            steps = await connection.execute(select(step.train_step, step.metrics).order_by(step.train_step))
            return (
                [tuple(row) for row in versions],
                [{key: value for key, value in row.metrics.items() if key not in TIMES} for row in steps],
            )


async def prepare(url: str, model: Path, **trainer: Any) -> None:
    """Two batches to train, of two train steps each; then the run is over."""
    config = Config.model_validate(
        {
            "run": {"name": RUN},
            "policy": {"model": str(model)},
            "queue": {"batch_groups": 4, "capacity": 8, "window_fraction": 0.5},
            "trainer": {"parts": 2, "lr": 1e-3, "pack_tokens": 96, **trainer},
        }
    )
    async with open_engine(url, name="test") as engine:
        run = await make_run(engine, config)
        await ready_groups(engine, run, list("abcdefgh"), Author())
        async with engine.begin() as connection:
            assert await close_intake(connection, run.run_id)


PLAN: dict[str, list[dict[str, Any]]] = {
    "one": [{"ranks": 1}],
    "two": [{"ranks": 2}],
    "killed": [
        {"ranks": 2, "kill": ["train_step.done", 1]},
        {"ranks": 2, "kill": ["train_step.done", 0]},
        {"ranks": 2},
    ],
    "adapters of one": [{"ranks": 1}],
    "adapters of two, then one": [{"ranks": 2, "train_steps": 2}, {"ranks": 1}],
    "adapters of one, then two": [{"ranks": 1, "train_steps": 2}, {"ranks": 2}],
}


@pytest.fixture(scope="module")
def worlds(
    databases: Databases,
    template_database: str,
    services_runner: asyncio.Runner,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, World]]:
    """Every world of PLAN, lived through by one process."""
    prepared = {lora_rank: f"ranks_{secrets.token_hex(6)}" for lora_rank in (0, 2)}
    for lora_rank, name in prepared.items():
        url = databases.create(name, template=template_database)
        services_runner.run(prepare(url, model, lora_rank=lora_rank))
    names = [*prepared.values()]
    made: dict[str, World] = {}
    plan = []
    for world, lives in PLAN.items():
        names.append(f"ranks_{secrets.token_hex(6)}")
        made[world] = World(
            databases.create(names[-1], template=prepared[2 if world.startswith("adapters") else 0]),
            tmp_path_factory.mktemp(world),
            [],
        )
        plan += [
            {"database": made[world].url, "policies": str(made[world].policies), **life} for life in lives
        ]
    names.append(f"ranks_{secrets.token_hex(6)}")
    made["torchrun"] = World(
        databases.create(names[-1], template=prepared[0]), tmp_path_factory.mktemp("torchrun"), []
    )
    made["torchrun"].lives.append(under_torchrun(made["torchrun"]))
    ended = live(plan)
    for world, lives in PLAN.items():
        made[world].lives.extend(ended[: len(lives)])
        ended = ended[len(lives) :]
    yield made
    for name in names:
        databases.drop(name)


def ended(argv: list[str], **own: str) -> tuple[int, str, str]:
    """Run a process group to its end: exit status, stdout, stderr."""
    with subprocess.Popen(
        argv,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, log = process.communicate(timeout=LIVES_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, log


def live(plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    argv = [sys.executable, "-m", "tests.integration.trainer.ranked_trainer", json.dumps(plan), "--run", RUN, "--subject", SUBJECT]  # fmt: skip
    status, output, log = ended(argv)
    assert status == 0, log[-6000:]
    return [json.loads(line) for line in output.splitlines()]


def under_torchrun(world: World) -> dict[str, Any]:
    """The command of ops/guides/ranks.md, and its end."""
    argv = [
        str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "-m", "--", "trainer",
        "--run", RUN, "--policies", str(world.policies), "--subject", SUBJECT,
    ]  # fmt: skip
    status, _, log = ended(argv, DATABASE_URL=world.url)
    return {"ended": status, "log": log}


async def test_two_ranks_under_torchrun_write_the_same_files_as_those_that_the_trainer_starts(
    worlds: dict[str, World],
) -> None:
    two, torchrun = worlds["two"], worlds["torchrun"]
    assert torchrun.lives[0]["ended"] == 0, torchrun.lives[0]["log"][-4000:]
    assert len(torchrun.checkpoints) > 1 and torchrun.files() == two.files()


async def test_two_ranks_train_what_one_trains(worlds: dict[str, World]) -> None:
    one, two = worlds["one"], worlds["two"]
    assert [life["ended"] for life in one.lives + two.lives] == [0, 0], two.lives
    assert "ranks.joined" in two.lives[0]["events"] and "ranks.joined" not in one.lives[0]["events"]
    for mine, theirs in zip(one.checkpoints, two.checkpoints, strict=True):
        ours, others = (load_file(path / "model.safetensors") for path in (mine, theirs))
        assert ours.keys() == others.keys()
        assert max(float((ours[name] - others[name]).abs().max()) for name in ours) < 1e-5
        assert open_checkpoint(mine).state == open_checkpoint(theirs).state
        canary = open_checkpoint(theirs).canary
        assert open_checkpoint(mine).canary.logprobs == pytest.approx(canary.logprobs, abs=1e-4)
    (_, alone), (_, together) = await one.rows(), await two.rows()
    for here, there in zip(alone, together, strict=True):
        for key in ("action_tokens", "samples", "tokens_naive", "staleness", "groups", "domains"):
            assert here[key] == there[key], key
        for key in ("loss", "gradient_norm", "kl_k1", "entropy", "ess", "mean_abs_dlogprob"):
            assert here[key] == pytest.approx(there[key], rel=1e-3, abs=1e-5), key
        assert there["tokens_merged"] >= here["tokens_merged"], "what groups share, each rank forwards"


async def test_a_rank_killed_in_a_train_step_ends_all_ranks_with_one_sentence_and_saves_nothing(
    worlds: dict[str, World],
) -> None:
    life, _, resumed = worlds["killed"].lives
    assert life["ended"] == 1 and life["seconds"] < SILENCE_S
    assert "batch.claimed" in life["events"] and "checkpoint.saved" not in life["events"]
    assert life["log"] == [f"trainer: rank 1 of 2 was killed by signal 9, {SO}"], "no stack trace"
    assert resumed["ended"] == 0


async def test_a_killed_rank_0_takes_the_others_along(worlds: dict[str, World]) -> None:
    life = worlds["killed"].lives[1]
    assert life["ended"] == -9 and life["seconds"] < SILENCE_S, (
        "its log ended, so no other process holds it open"
    )
    assert "checkpoint.saved" not in life["events"]
    [sentence] = life["log"]  # of rank 1, which sees the end of a connection or of a pipe first
    assert sentence in (
        f"trainer: rank 1: {what}, {SO}" for what in ("rank 0 is gone", "a rank was lost while it worked")
    )


async def test_training_resumed_after_dead_ranks_is_the_same_bit_for_bit(worlds: dict[str, World]) -> None:
    assert worlds["killed"].files() == worlds["two"].files()
    assert await worlds["killed"].rows() == await worlds["two"].rows()


@pytest.mark.parametrize("world", ["adapters of two, then one", "adapters of one, then two"])
async def test_adapters_that_some_ranks_trained_others_train_on_as_one_rank_would(
    worlds: dict[str, World], world: str
) -> None:
    one, changed = worlds["adapters of one"], worlds[world]
    assert [life["ended"] for life in one.lives + changed.lives] == [0, 0, 0], changed.lives
    assert ["ranks.joined" in life["events"] for life in changed.lives] == (
        [True, False] if "two, then" in world else [False, True]
    )
    for mine, theirs in zip(one.checkpoints, changed.checkpoints, strict=True):
        for name in ("model*.safetensors", "trainer/adapter.safetensors", "trainer/base.safetensors"):
            ours, others = (
                {key: value for file in path.glob(name) for key, value in load_file(file).items()}
                for path in (mine, theirs)
            )
            assert ours.keys() == others.keys() and ours
            assert max(float((ours[key] - others[key]).abs().max()) for key in ours) < 1e-5, name
    first, *later = [path / "trainer/base.safetensors" for path in changed.checkpoints]
    assert all(file.samefile(first) for file in later) and len(later) == 2
