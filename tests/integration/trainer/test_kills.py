"""A trainer that is killed, at every failpoint and at random, trains the same batches to the same weights, bit for bit, as an undisturbed trainer."""

import asyncio
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import close_intake
from orchestrator.pool.tables import batch_rollouts, batches, groups, policy_versions, train_steps
from orchestrator.runtime.failpoints import BOUNDARIES, HITS
from orchestrator.settings.config import Config
from tests.builders import Author, make_run, ready_groups
from tests.integration.audit.audited import no_violations
from tests.integration.trainer.rig import SUBJECT, model
from tests.services import Databases

__all__ = ["model"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(1200), pytest.mark.tier("faults")]

RUN = "kills"
LIVES_S = 900.0  # two dozen of them, on a busy machine
POINTS = sorted(
    f"{name}.{side}"
    for name, boundary in BOUNDARIES.items()
    if "trainer" in boundary.who
    for side in ("before", "after")
)
KILLS = 6
TIMES = {"wall_s", "cpu_s", "seconds", "checkpoint"}  # metrics that differ from life to life


async def prepare(url: str, model: Path) -> None:
    """Three batches to train, and between them a batch that cannot be trained; then the run is over."""
    config = Config.model_validate(
        {
            "run": {"name": RUN},
            "policy": {"model": str(model)},
            "queue": {"batch_groups": 2, "capacity": 8, "window_fraction": 0.3},
            "trainer": {"parts": 2, "lr": 1e-3, "keep_checkpoints": 1},
        }
    )
    not_a_number = Author(score=lambda full, state_len: np.full(len(full) - state_len, np.nan, np.float32))
    async with open_engine(url, name="test") as engine:
        run = await make_run(engine, config)
        await ready_groups(engine, run, ["a", "b"], Author())
        await ready_groups(engine, run, ["bad 1", "bad 2"], not_a_number)
        await ready_groups(engine, run, ["c", "d", "e", "f"], Author(seed=1))
        async with engine.begin() as connection:
            assert await close_intake(connection, run.run_id)


@dataclass(frozen=True)
class Outcome:
    """All that a trainer leaves behind: rows without ids and times, and the bytes of its files."""

    rows: dict[str, list[Any]]
    files: dict[str, str]


@dataclass(frozen=True)
class World:
    """A copy of the prepared run, and where its trainer writes."""

    url: str
    root: Path

    def train(self, kills: int = 0, lines: int = 0, seed: int = 0) -> tuple[list[int], int]:
        """How each life of a trainer ended, the last one by itself; and the number of lines of their logs."""
        (self.root / "failpoints").mkdir(parents=True, exist_ok=True)
        argv = [
            sys.executable, "-m", "tests.integration.trainer.reborn_trainer", str(kills), str(lines), str(seed),
            "--run", RUN, "--policies", str(self.root / "policies"), "--subject", SUBJECT,
        ]  # fmt: skip
        needed = {"DATABASE_URL": self.url, "OMP_NUM_THREADS": "1"}
        armed = {"PENSTOCK_FAILPOINTS": str(self.root / "failpoints")}
        with subprocess.Popen(
            argv,
            env=os.environ | needed | armed,
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
        assert process.returncode == 0, log[-4000:]
        ended = [json.loads(line)["ended"] for line in output.splitlines()]
        return ended, len(log.splitlines())

    async def outcome(self) -> Outcome:
        async with open_engine(self.url, name="test") as engine:
            rows = {name: await _rows(engine, query) for name, query in _LEFT.items()}
            await no_violations(engine, RUN, self.root / "policies")
        for row in rows["train steps"]:
            row[-1] = {key: value for key, value in row[-1].items() if key not in TIMES}
        root = self.root / "policies" / RUN
        files = {
            path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }
        return Outcome(rows, files)


_BATCH = batches.c
_LEFT = {
    "batches": select(_BATCH.batch_no, _BATCH.state, _BATCH.size, _BATCH.digest, _BATCH.version)
    .where(_BATCH.digest.is_not(None))
    .order_by(_BATCH.batch_id),
    "rollouts": select(
        _BATCH.batch_no,
        _BATCH.state,
        batch_rollouts.c.rollout_id,
        batch_rollouts.c.reward_revision,
        batch_rollouts.c.advantage,
    )
    .select_from(batch_rollouts.join(batches))
    .order_by(_BATCH.batch_id, batch_rollouts.c.rollout_id),
    "groups": select(groups.c.submission, groups.c.state, groups.c.reason).order_by(groups.c.group_id),
    "versions": select(
        policy_versions.c.version,
        policy_versions.c.parent,
        policy_versions.c.batch_no,
        policy_versions.c.manifest_sha,
        policy_versions.c.superseded_by,
    ).order_by(policy_versions.c.version),
    "train steps": select(
        train_steps.c.train_step, train_steps.c.part, _BATCH.batch_no, train_steps.c.metrics
    )
    .select_from(train_steps.join(batches))
    .order_by(train_steps.c.train_step),
}


async def _rows(engine: AsyncEngine, query: Any) -> list[list[Any]]:
    async with engine.connect() as connection:
        return [list(row) for row in await connection.execute(query)]


@pytest.fixture(scope="module")
def prepared(
    databases: Databases, template_database: str, services_runner: asyncio.Runner, model: Path
) -> Iterator[str]:
    """The name of a database that is only copied: every world has the same ids."""
    name = f"kills_{secrets.token_hex(6)}"
    services_runner.run(prepare(databases.create(name, template=template_database), model))
    yield name
    databases.drop(name)


@pytest.fixture(scope="module")
def worlds(
    databases: Databases, prepared: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], World]]:
    made: list[str] = []

    def make() -> World:
        made.append(f"kills_{secrets.token_hex(6)}")
        return World(databases.create(made[-1], template=prepared), tmp_path_factory.mktemp("world"))

    yield make
    for name in made:
        databases.drop(name)


@pytest.fixture(scope="module")
def left_alone(worlds: Callable[[], World], services_runner: asyncio.Runner) -> tuple[Outcome, int]:
    """The files that an undisturbed trainer leaves behind, and the lines that it logs."""
    world = worlds()
    ended, lines = world.train()
    assert ended == [0] and lines > 10
    outcome = services_runner.run(world.outcome())
    assert [row[1:3] for row in outcome.rows["batches"]] == [["committed", 2], ["voided", 2]] + [
        ["committed", 2]
    ] * 2
    assert [row[2] for row in outcome.rows["versions"]] == [None, 0, 1, 2]
    assert {name.split("/")[0] for name in outcome.files} == {
        "trainer.lock",
        "version-000000",
        "version-000003",
    }
    return outcome, lines


async def in_thread(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work)


async def test_killed_at_every_failpoint_it_trains_the_same_batches_to_the_same_weights(
    worlds: Callable[[], World], left_alone: tuple[Outcome, int]
) -> None:
    world = await in_thread(worlds)
    armed = world.root / "failpoints"
    armed.mkdir()
    for point in POINTS:
        (armed / point).write_text("exit")
    ended, _ = await in_thread(world.train)
    hits = [line.split() for line in (armed / HITS).read_text().splitlines()]
    assert sorted(point for point, *_ in hits) == POINTS and ended == [-9] * len(POINTS) + [0]
    assert len({pid for *_, pid, _ in hits}) == len(POINTS), "one death each"
    assert await world.outcome() == left_alone[0]


@pytest.mark.parametrize("seed", range(3))
async def test_killed_at_random_it_trains_the_same_batches_to_the_same_weights(
    worlds: Callable[[], World], left_alone: tuple[Outcome, int], seed: int
) -> None:
    world = await in_thread(worlds)
    outcome, lines = left_alone
    ended, _ = await in_thread(lambda: world.train(KILLS, lines, seed))
    assert ended[0] == -9 and ended[-1] == 0
    assert await world.outcome() == outcome
