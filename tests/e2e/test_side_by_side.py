"""A rolling upgrade: the previous commit's processes and today's on one database, one bus and one run directory, in both directions.

The previous code is that of the newest commit before this one whose product is another, or of `PENSTOCK_PREVIOUS` (a release's tag). It is
unpacked and imported as it was; the database is at today's revision.
"""

import math
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from alembic import command
from sqlalchemy import text

from orchestrator.audit import audit
from orchestrator.bus.feed import in_background
from orchestrator.bus.nats import NatsBus
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import ensure_run
from orchestrator.queries.submitted import RecordingProgress
from orchestrator.recording import Studio, stack_configuration
from orchestrator.tasks.suite.record import demonstrations
from tests.e2e.stack_rig import REPOSITORY, START_S, Stack, place, until
from tests.integration.pool.test_migrations import NEXT, contracting
from tests.violations import nothing_found
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

EACH = 16  # demonstrations in each direction
PRODUCT = ("orchestrator", "agents", "sandboxes", "trainer", "migrations")
WORKERS = ("runner", "verifier")
CORE = ("orchestrator", "gateway")


def git(*arguments: str, at: Path = REPOSITORY) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *arguments], cwd=at, capture_output=True)


def product(commit: str, at: Path) -> bytes:
    """The product's directories at a commit. Empty: the commit is not in this clone."""
    listed = git("ls-tree", "--full-tree", commit, *PRODUCT, at=at)
    return b"" if listed.returncode else listed.stdout


def before(at: Path = REPOSITORY) -> str:
    """The newest ancestor with another product: an ancestor that differs only in tests or guides would run today's code again. Empty:
    this clone has no such ancestor."""
    today = product("HEAD", at)
    for changed in git("rev-list", "HEAD", "--", *PRODUCT, at=at).stdout.decode().split():
        for parent in git("rev-list", "--parents", "-n1", changed, at=at).stdout.decode().split()[1:]:
            if product(parent, at) not in (b"", today):
                return parent
    return ""


@pytest.fixture(scope="module")
def previous() -> Iterator[Path]:
    """The previous code. Not a worktree of this repository, which a killed test would leave behind."""
    name = os.environ.get("PENSTOCK_PREVIOUS") or before()
    if not name or git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").returncode:
        pytest.fail(
            f"{name or 'a commit with another product'} is not in this clone, so nothing can run next to today's code: "
            "get it with `git fetch --deepen=1` (or --tags), or name another commit in PENSTOCK_PREVIOUS"
        )
    described = git("log", "-1", "--format=%h of %cs, %s", name).stdout.decode().strip()
    print(f"the previous code: {described}")
    packed = git("archive", "--format=tar", name, *PRODUCT)
    assert packed.returncode == 0, packed.stderr.decode()
    with place() as directory:
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
            tar.extractall(directory, filter="data")
        yield directory


@dataclass(frozen=True)
class World:
    """The shared services and directories of both versions."""

    stack: Stack
    services: Mapping[str, str]

    def environment(self, code: Path) -> dict[str, str]:
        path = os.pathsep.join([str(code), str(code / "agents")])
        return self.stack.environment(PYTHONPATH=path, **self.services)

    def says(self, code: Path, *command: str) -> "subprocess.CompletedProcess[str]":
        """The output of a program that runs on some code."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=code,
            env=self.environment(code),
            capture_output=True,
            text=True,
            timeout=100,
        )

    def _begin(self, code: Path, name: str) -> "subprocess.Popen[bytes]":
        with self.stack.log.open("ab") as log:
            command = [sys.executable, "-m", "orchestrator.cli", name, "--config", str(self.stack.directory)]
            return subprocess.Popen(command, cwd=code, env=self.environment(code), stdout=log, stderr=log)

    @asynccontextmanager
    async def running(self, code: Path, *names: str) -> AsyncIterator[None]:
        """Processes of some code, stopped at the end, each with exit status 0."""
        found = self.says(
            code, "-c", "import orchestrator, scaffolds; print(orchestrator.__file__, scaffolds.__file__)"
        )
        assert found.stdout.split() == [
            str(code / f) for f in ("orchestrator/__init__.py", "agents/scaffolds/__init__.py")
        ]
        started = [self._begin(code, name) for name in names]

        def ended() -> list[str]:
            return [name for name, process in zip(names, started, strict=True) if process.poll() is not None]

        async def watch() -> None:
            gone = await eventually(ended, within_s=math.inf, every_s=0.2)
            raise AssertionError(f"{gone} ended: {self.stack.log.read_text()[-4000:]}")

        try:
            async with in_background(watch):
                yield
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                assert await anyio.to_thread.run_sync(process.wait, 30) == 0
        finally:
            for process in started:
                process.kill()
                process.wait()


@pytest.fixture
async def world(stack: Stack, model: Path, database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    config = stack_configuration(model, slots=4, verify_slots=2, sandbox="bubblewrap")
    (stack.directory / "penstock.toml").write_text(config)
    async with EmbeddedNats(tmp_path / "nats") as nats:
        yield World(stack, {"DATABASE_URL": database_url, "NATS_URL": nats.url})


def nothing(progress: RecordingProgress) -> None:
    """Ignores the progress."""


def test_the_previous_code_is_of_the_newest_commit_with_another_product(tmp_path: Path) -> None:
    assert git("init", "-q", at=tmp_path).returncode == 0
    made = []
    for file, content in [
        ("trainer/a", "1"),
        ("tests/a", "1"),
        ("trainer/a", "2"),
        ("tests/a", "2"),
        ("a", "1"),
    ]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
        git("add", file, at=tmp_path)
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        assert git(*who, "commit", "-q", "-m", file, at=tmp_path).returncode == 0
        made.append(git("rev-parse", "HEAD", at=tmp_path).stdout.decode().strip())
    assert before(tmp_path) == made[1]


async def test_the_previous_commit_is_refused_in_one_sentence_by_a_database_that_has_contracted_since(
    previous: Path, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "penstock.toml").write_text('[run]\nname = "first"\n')
    contraction = contracting(tmp_path / "migrations", database_url)
    await anyio.to_thread.run_sync(command.upgrade, contraction, "head")
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "NATS_URL": "nats://127.0.0.1:1",
        "PYTHONPATH": os.pathsep.join([str(previous), str(previous / "agents")]),
    }
    with anyio.fail_after(100):
        refused = await anyio.run_process(
            [sys.executable, "-m", "orchestrator.cli", "orchestrator", "-c", str(tmp_path)],
            env=environment,
            cwd=previous,
            check=False,
        )
    assert refused.returncode == 1
    assert re.fullmatch(
        rf"penstock: the database is at revision {NEXT}, on which code older than {NEXT} cannot run; this is \d{{4}}: "
        r"start the version of Penstock that the database was upgraded for\n",
        refused.stderr.decode(),
    )


async def test_runners_of_the_previous_commit_work_for_todays_orchestrator_and_todays_for_the_previous_one(
    world: World, previous: Path
) -> None:
    url = world.services["DATABASE_URL"]
    async with open_engine(url) as engine:
        async with engine.connect() as connection:
            oldest = await connection.scalar(text("SELECT oldest_code FROM compatibility"))
        revision = re.search(
            r'^REVISION = "(\d+)"', (previous / "orchestrator/pool/engine.py").read_text(), re.M
        )
        assert revision is not None
        if revision[1] < oldest:  # today's commit contracts: the previous one must report that it cannot run
            refused = world.says(
                previous, "-m", "orchestrator.cli", "runner", "--config", str(world.stack.directory)
            )
            assert refused.returncode == 1 and f"older than {oldest} cannot run" in refused.stderr
            return
        config = world.stack.home.config()
        async with engine.begin() as connection:  # as `penstock up` does
            run = await ensure_run(connection, config.run.name, config.to_json())
            # Scripts name version 0, which no trainer publishes here.
            await connection.execute(
                text(
                    "INSERT INTO policy_versions (run_id, version, path, manifest_sha) VALUES (:run, 0, :path, '00')"
                ),
                {"run": run.run_id, "path": config.policy.model},
            )
        drawn = demonstrations(2 * EACH, 0, {"shell": 1.0})
        for number, (core, workers) in enumerate([(REPOSITORY, previous), (previous, REPOSITORY)]):
            async with AsyncExitStack() as running:
                await running.enter_async_context(world.running(core, *CORE))
                await until(world.stack.home.gateway_url_file.exists, "the gateway listens", START_S)
                await running.enter_async_context(world.running(workers, *WORKERS))
                bus = await running.enter_async_context(
                    NatsBus.connect(world.services["NATS_URL"], name="test")
                )
                studio = Studio(run=run.name, run_id=run.run_id, bus=bus, engine=engine)
                part = drawn[number * EACH : (number + 1) * EACH]
                done = await studio.record(part, f"direction-{number}", nothing)
                assert (done.progress.ended, done.progress.scored) == (EACH, EACH)
            world.stack.home.gateway_url_file.unlink(missing_ok=True)
        async with engine.connect() as connection:
            tried = await connection.scalars(text("SELECT attempt FROM attempts"))
            assert tried.all() == [1] * 2 * EACH
    home, sandboxes = world.stack.home, world.stack.sandbox_root
    async with open_engine(url, Role.READER, size=2, name="audit") as reader:
        report = await audit(
            reader, run.name, alive=frozenset(), sandbox_root=sandboxes, workers=home.workers
        )
        await nothing_found(reader, report)
    assert world.stack.tracebacks() == []
