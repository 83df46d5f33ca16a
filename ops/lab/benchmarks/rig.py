"""The test bed of the gateway measurements: `penstock up` with orchestrator and gateway, and a stub rollout server."""

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tokenizers import Tokenizer

from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.deploy.embedded.spawn import spawn
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home
from orchestrator.gateway_client import GatewayAdmin, OpenSession, SessionBudget
from orchestrator.pool.engine import open_engine
from orchestrator.pool.policy_versions import record_first_version
from orchestrator.pool.runs import get_run
from orchestrator.pool.submissions import NewGroup, accept

CONTEXT = 1 << 18  # tokens; the stub attends to nothing
START_S = 90.0
CONFIG = """\
[run]
name = "bench"

[policy]
model = "{model}"

[servers]
urls = ["{stub}"]

[sampling]
max_new_tokens = 50
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A gateway under measurement, with its database and its stub rollout server."""

    run: str
    run_id: int
    stub: str
    socket: str  # the Unix socket that sandboxes see
    pid: int
    admin: GatewayAdmin
    engine: AsyncEngine
    tokenizer: Tokenizer

    async def open_sessions(self, count: int) -> list[OpenSession]:
        """Open sessions of `count` new rollouts, which look as if a runner had leased them."""
        name = secrets.token_hex(6)
        new = NewGroup(
            submission=name,
            task_sha=secrets.token_bytes(32),
            task_name=name,
            domain="general",
            settings={},
            body={},
            purpose=Purpose.EVAL,
            scaffold="shell",
            size=count,
            seed=1,
        )
        async with self.engine.begin() as connection:
            await accept(connection, self.run_id, new)
            group = await connection.scalar(
                text("UPDATE groups SET state = 'dispatched' WHERE submission = :name RETURNING group_id"),
                {"name": name},
            )
            rows = await connection.execute(
                text(
                    "UPDATE rollouts SET state = 'running', lease_epoch = 1 WHERE group_id = :group RETURNING rollout_id"
                ),
                {"group": group},
            )
            rollouts = sorted(row.rollout_id for row in rows)
        budget = SessionBudget(max_turns=1_000_000, max_context=CONTEXT - 1024)
        return [
            await self.admin.open_session(run=self.run, rollout=rollout, attempt=1, epoch=1, budget=budget)
            for rollout in rollouts
        ]

    def cpu_s(self) -> float:
        """CPU seconds of the gateway process."""
        return cpu_s(self.pid)

    def resident(self) -> int:
        """Resident bytes of the gateway process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def stored(self) -> int:
        """Steps of the run in Postgres."""
        async with self.engine.connect() as connection:
            found = await connection.scalar(
                text("SELECT count(*) FROM steps WHERE run_id = :run"), {"run": self.run_id}
            )
        return int(found or 0)


def cpu_s(pid: int) -> float:
    """CPU seconds that the threads of a process have used, to the nanosecond (/proc/PID/stat counts in steps of 10 ms)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def make_model(directory: Path) -> Path:
    """A model directory with the demo's tokenizer and chat format and a context that no measurement fills."""
    subprocess.run(
        [sys.executable, "-m", "trainer.policy", "--out", str(directory)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@contextmanager
def own_process(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child process, ended by its id, and by the kernel if this process is killed."""
    process = spawn(argv, log=log, env=os.environ, death_signal=signal.SIGTERM)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running_stub(model: Path, delay_ms: float, log: Path) -> Iterator[str]:
    """Run a stub on a free port; yields its URL."""
    port = free_port()
    argv = [sys.executable, "-m", "ops.lab.benchmarks.stub_server", "--model", str(model)]
    with own_process([*argv, "--delay-ms", str(delay_ms), "--port", str(port)], log) as process:
        while process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running_proxy(stub: str) -> Iterator[tuple[str, int]]:
    """Run the bare proxy in front of a stub; yields (its Unix socket, its process id)."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        path = f"{directory}/bare.sock"
        argv = [sys.executable, "-m", "ops.lab.benchmarks.bare_proxy", "--socket", path]
        with own_process([*argv, "--server", stub], Path(directory) / "bare.log") as process:
            while process.poll() is None:
                with suppress(OSError), socket.socket(socket.AF_UNIX) as ready:
                    ready.connect(path)
                    break
                time.sleep(0.05)
            yield path, process.pid


async def _up(home: Home, stack: subprocess.Popen[bytes]) -> int:
    """Wait for the gateway; returns its process id."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and stack.poll() is None:
        status = read_status(home.layout)
        for process in status.processes if status is not None else ():
            if process.name == ProcessRole.GATEWAY and process.state is ProcessState.READY and process.pid:
                return process.pid
        await anyio.sleep(0.1)
    raise RuntimeError(f"the stack did not come up; see {home.layout.root.parent / 'up.log'}")


async def _publish(rig_engine: AsyncEngine, run_id: int, directory: Path) -> None:
    """Publish version 0. Its weights are never loaded: the stub reports that it has them and agrees with the canary."""
    directory.mkdir()
    manifest = json.dumps({"canary": {"ids": [1, 2], "logprobs": [0.0]}, "files": {}}).encode()
    (directory / "manifest.json").write_bytes(manifest)
    async with rig_engine.begin() as connection:
        await record_first_version(connection, run_id, directory, hashlib.sha256(manifest).hexdigest())


@asynccontextmanager
async def open_rig(directory: Path, model: Path, delay_ms: float) -> AsyncIterator[Rig]:
    """A gateway without sessions, ready for calls."""
    directory.mkdir()
    with running_stub(model, delay_ms, directory / "stub.log") as stub:
        (directory / "penstock.toml").write_text(CONFIG.format(model=model, stub=stub))
        arguments = ["up", "-c", str(directory), "--only", "orchestrator,gateway"]
        with own_process(
            [sys.executable, "-m", "orchestrator.cli", *arguments], directory / "up.log"
        ) as stack:
            home = Home.at(directory)
            pid = await _up(home, stack)
            config = home.connected()
            url = home.gateway_url_file.read_text().strip()
            async with (
                open_engine(config.services.database_url, size=2) as engine,
                GatewayAdmin(url, home.gateway_secret.read_text().strip()) as admin,
            ):
                async with engine.connect() as connection:
                    run = await get_run(connection, config.run.name)
                await _publish(engine, run.run_id, directory / "version-0")
                tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
                yield Rig(
                    run=run.name,
                    run_id=run.run_id,
                    stub=stub,
                    socket=str(home.gateway_socket),
                    pid=pid,
                    admin=admin,
                    engine=engine,
                    tokenizer=tokenizer,
                )
