"""The boundaries that only a start or a bad batch reaches: each action in turn, started again until it is through."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest
from anyio.abc import Process
from sqlalchemy import select

from orchestrator.pool.engine import open_engine
from orchestrator.pool.tables import dead_letters, groups, policy_versions
from orchestrator.runtime.failpoints import BOUNDARIES, HITS
from orchestrator.settings.config import Config
from tests.builders import Author, make_run, ready_groups
from tests.e2e.stack_rig import Stack, until
from tests.failpoints.boundaries import AT_THE_START, points_of
from tests.failpoints.conftest import ACTIONS
from trainer.benchmarks.random_model import write_random_model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.timeout(1500),
    pytest.mark.tier("failpoints"),
]

PATIENCE_S = 600.0
STARTS = 20  # of one boundary: more means that an action is never reached
SUPERVISOR = ("file.sync", "file.rename", "log.rename", "cluster.rename", "run.create")
UNSENDABLE = "gateway.refused"  # no step of an embedded stack can grow so large: its context ends long before
KEEP = """
import sys, anyio
from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import JournalEntry
from orchestrator.gateway.server import _unsendable
from orchestrator.pool.engine import Role, open_engine

async def keep(url, run):
    message = Outgoing(subject="steps.large.1", msg_id="1:1:0:step", schema="StepRecorded/1", body=b"{}")
    async with open_engine(url, Role.GATEWAY, size=1) as engine:
        await _unsendable(engine, int(run))(JournalEntry(1, message), "too large")

anyio.run(keep, *sys.argv[1:])
"""
LONG_LOG = 51 * 1024 * 1024


@pytest.fixture
def armed(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of failpoints for every process started from now on."""
    directory = stack.directory / "failpoints"
    directory.mkdir()
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", str(directory))
    return directory


def arm(directory: Path, name: str, actions: tuple[str, ...]) -> Callable[[], list[str]]:
    """Arm all of them; returns a function that reports which are left."""
    points = points_of(name, actions)
    for point, wanted_actions in points.items():
        (directory / point).write_text("\n".join(wanted_actions))
    wanted = Counter(
        f"{point} {action}" for point, wanted_actions in points.items() for action in wanted_actions
    )

    def left() -> list[str]:
        hits = directory / HITS
        lines = hits.read_text().splitlines() if hits.exists() else []
        return sorted((wanted - Counter(line.rsplit(" ", 2)[0] for line in lines)).elements())

    return left


def skipped(name: str, chosen: tuple[list[str] | None, list[str] | None]) -> None:
    if chosen[0] and name not in chosen[0]:
        pytest.skip("another failpoint was selected")


@pytest.mark.parametrize("name", SUPERVISOR)
async def test_the_supervisor_comes_up_after_each_failure_of_its_own_files(
    name: str, stack: Stack, model: Path, armed: Path, chosen: tuple[list[str] | None, list[str] | None]
) -> None:
    skipped(name, chosen)
    stack.configure(model, batches=1)
    left = arm(armed, name, tuple(chosen[1] or ACTIONS))
    for _ in range(STARTS):
        if await comes_up(stack, name):
            if not left():
                break
            assert stack.signalled(signal.SIGTERM) == 0
            if name in ("file.sync", "cluster.rename"):  # of the first start in a directory
                stack.forget()
    assert left() == [], f"{name}: replay it alone: ./ops/test --tier failpoints --failpoint {name}"
    assert stack.signalled(signal.SIGTERM) == 0
    assert stack.tracebacks() == [] and stack.left_running() == []


async def comes_up(stack: Stack, name: str) -> bool:
    """Start it; False when it ended instead: killed, or with one sentence."""
    if name == "log.rename":
        log = stack.home.layout.log("orchestrator")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.truncate(LONG_LOG)  # a hole
    process = stack.started("--only", "orchestrator")

    def decided() -> bool:
        return process.poll() is not None or stack.says_that_it_is_up()

    await until(decided, "penstock up is up, or has ended", PATIENCE_S)
    if process.poll() is None:
        return True
    output = stack.last_output()
    assert process.returncode == -signal.SIGKILL or "penstock: " in output.splitlines()[-1], output
    return False


async def test_the_trainer_publishes_its_first_version_and_gives_bad_batches_up_after_each_failure(
    armed: Path, database_url: str, tmp_path: Path, chosen: tuple[list[str] | None, list[str] | None]
) -> None:
    model = write_random_model(
        tmp_path / "model", vocab_size=259, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=24
    )
    actions = tuple(chosen[1] or ACTIONS)
    wanted = [name for name in ("trainer.first", "trainer.quarantine") if not chosen[0] or name in chosen[0]]
    nan = Author(score=lambda full, state_len: np.full(len(full) - state_len, np.nan, np.float32))
    async with open_engine(database_url) as engine:
        for name in wanted:
            left = arm(armed, name, actions)
            for number in range(STARTS):
                if not left():
                    break
                # A first version is published once in a run: the remaining actions need another run.
                run_name = f"{name.rpartition('.')[2]}{number}"
                config = Config.model_validate(
                    {
                        "run": {"name": run_name},
                        "policy": {"model": str(model)},
                        "queue": {"batch_groups": 1, "capacity": 8},
                    }
                )
                run = await make_run(engine, config)
                await ready_groups(engine, run, ["bad 1", "bad 2", "bad 3"], nan)
                for _ in range(STARTS):
                    if await trained(database_url, run_name, tmp_path / "policies") == 1:
                        break
                async with engine.connect() as connection:
                    versions = (
                        await connection.scalars(
                            select(policy_versions.c.version).where(policy_versions.c.run_id == run.run_id)
                        )
                    ).all()
                    states = (
                        await connection.execute(
                            select(groups.c.state, groups.c.reason).where(groups.c.run_id == run.run_id)
                        )
                    ).all()
                assert list(versions) == [0]
                assert {tuple(row) for row in states} == {("filtered", "quarantined")}
            assert left() == [], f"{name}: replay it alone: ./ops/test --tier failpoints --failpoint {name}"


async def trained(url: str, run: str, policies: Path) -> int:
    """One life of the trainer's process: 1 when it halted because every batch is bad, else the signal that killed it."""
    process: Process = await anyio.open_process(
        [
            sys.executable,
            "-m",
            "trainer",
            "--run",
            run,
            "--policies",
            str(policies),
            "--subject",
            f"policy.{run}",
        ],
        env={**os.environ, "DATABASE_URL": url, "OMP_NUM_THREADS": "1"},
        stdout=None,
    )
    assert process.stderr is not None
    output = b""
    async with process:
        with anyio.move_on_after(PATIENCE_S) as patience:
            async for part in process.stderr:
                output += part
            await process.wait()
        if patience.cancelled_caught:
            process.kill()
    last = output.decode().splitlines()[-1] if output else ""
    assert not patience.cancelled_caught, f"neither halted nor killed: {output.decode()}"
    assert process.returncode == -signal.SIGKILL or "had to be quarantined" in last, output.decode()
    assert process.returncode is not None
    return process.returncode


async def test_the_gateway_keeps_a_step_that_no_stream_takes_after_each_failure(
    armed: Path, database_url: str, chosen: tuple[list[str] | None, list[str] | None]
) -> None:
    skipped(UNSENDABLE, chosen)
    async with open_engine(database_url) as engine:
        run = await make_run(engine, Config.model_validate({"run": {"name": "large"}}))
        left = arm(armed, UNSENDABLE, tuple(chosen[1] or ACTIONS))
        for _ in range(STARTS):
            ended = await anyio.run_process(
                [sys.executable, "-c", KEEP, database_url, str(run.run_id)], check=False, stderr=None
            )
            assert ended.returncode in (0, -signal.SIGKILL)
            if not left():
                break
        assert left() == [], (
            f"{UNSENDABLE}: replay it alone: ./ops/test --tier failpoints --failpoint {UNSENDABLE}"
        )
        async with engine.connect() as connection:
            kept = set(await connection.scalars(select(dead_letters.c.msg_id)))
    assert kept == {"1:1:0:step"}


def test_every_boundary_is_exercised_here_or_on_the_stack() -> None:
    trainer = {"trainer.first", "trainer.quarantine"}
    assert {*SUPERVISOR, *trainer, UNSENDABLE} == AT_THE_START | {"run.create"}
    assert set(BOUNDARIES) >= AT_THE_START
