"""The stack that a check runs on: everything real but the policy, in one process and one temporary directory."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from scaffolds.base import Scaffold
from sqlalchemy import text

from orchestrator import plugins
from orchestrator.app import open_flow
from orchestrator.config import Config
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.states import Purpose
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.embedded.postgres import EmbeddedPostgres
from orchestrator.flow.context import Flow
from orchestrator.flow.dispatcher import dispatcher
from orchestrator.flow.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.flow.reaper import reaper
from orchestrator.flow.relay import relay
from orchestrator.flow.rollout_runner import RunnerSettings, serve_rollouts
from orchestrator.flow.verify_runner import serve_verifications
from orchestrator.flow.worker import WorkerSettings
from orchestrator.gateway.server import Gateway, GatewaySettings
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.steps import StoredStep, trajectories
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.scaffold_check.server import LOGPROB, Exchange, ScriptedServer
from orchestrator.scaffold_check.tap import Request, Script, Tap
from orchestrator.stack import upgrade
from orchestrator.tasks.harbor import Task
from sandboxes.base import Provider

CONTEXT = (
    262_144  # tokens: the check policy's tokenizer spends about one per character on what it does not know
)
ENDED = ("verified", "lost")
GRADE_S = 60.0  # beside an attempt's own time: queueing, grading
TEST = 'mkdir -p /logs/verifier; [ "$(cat out)" = done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
CANARY = [1, 2, 3, 4]


@dataclass(frozen=True, slots=True)
class Played:
    """One attempt as the data pool has it, and what was seen on the way. `sent`: completions of the rollout server."""

    failure: str
    reason: str
    reward: float | None
    log: str
    steps: Sequence[StoredStep]
    rows: Sequence[Any]
    marked: dict[int, set[str]]
    requests: Sequence[Request]
    sent: Sequence[Exchange]

    @property
    def own(self) -> list[Request]:
        """The requests that are the policy's work."""
        return [request for request in self.requests if request.number is not None]

    @property
    def passed(self) -> bool:
        return self.failure == "completed" and self.reward == 1.0


@dataclass(slots=True)
class Bench:
    """Plays scripts against one scaffold."""

    name: str
    scaffold: Scaffold
    flow: Flow
    tap: Tap
    server: ScriptedServer
    provider: Provider
    socket: Path

    async def play(self, script: Script, *, timeout_s: float = 120.0) -> Played:
        """One attempt at the check's task. PenstockError when nothing comes of it in time."""
        self.tap.play(script)
        before = len(self.server.sent)
        rollout = await self._submit(_task(timeout_s))
        query = "SELECT state FROM rollouts WHERE rollout_id = :id"
        try:
            with anyio.fail_after(timeout_s + GRADE_S):
                while (await self._rows(query, id=rollout))[0].state not in ENDED:
                    await anyio.sleep(0.05)
        except TimeoutError:
            raise PenstockError(f"the attempt did not end within {timeout_s + GRADE_S:g} s") from None
        (attempt,) = await self._rows("SELECT * FROM attempts WHERE rollout_id = :id", id=rollout)
        verdict = await self._rows("SELECT reward FROM verdicts WHERE rollout_id = :id", id=rollout)
        rows = await self._rows("SELECT * FROM steps WHERE rollout_id = :id ORDER BY idx", id=rollout)
        marked: dict[int, set[str]] = {}
        for mark in await self._rows("SELECT idx, reason FROM step_marks WHERE rollout_id = :id", id=rollout):
            marked.setdefault(mark.idx, set()).add(mark.reason)
        async with self.flow.engine.connect() as connection:
            found = await trajectories(connection, self.flow.run_id, [(rollout, attempt.attempt)])
        return Played(
            failure=str(attempt.failure_class),
            reason=attempt.reason or "",
            reward=float(verdict[0].reward) if verdict else None,
            log=attempt.log or "",
            steps=found.get(rollout, []),
            rows=rows,
            marked=marked,
            requests=list(self.tap.requests),
            sent=self.server.sent[before:],
        )

    async def _submit(self, task: Task) -> int:
        name = secrets.token_hex(8)
        new = NewGroup(
            submission=name,
            task_sha=bytes.fromhex(task.content_hash),
            task_name=task.name,
            domain="general",
            settings=task.settings.model_dump(mode="json"),
            body=task.to_message(),
            purpose=Purpose.RECORD,
            scaffold=self.name,
            size=1,
            seed=7,
        )
        async with self.flow.engine.begin() as connection:
            await accept(connection, self.flow.run_id, new)
            query = "SELECT rollout_id FROM rollouts JOIN groups USING (group_id) WHERE submission = :name"
            found = await connection.scalar(text(query), {"name": name})
        self.flow.signals.work.set()
        return int(found)

    async def _rows(self, query: str, **parameters: Any) -> Sequence[Any]:
        async with self.flow.engine.connect() as connection:
            return (await connection.execute(text(query), parameters)).all()


@dataclass(frozen=True, slots=True)
class Services:
    """What several benches share."""

    directory: Path
    database_url: str
    nats_url: str
    model: Path


@asynccontextmanager
async def open_services() -> AsyncIterator[Services]:
    """PostgreSQL, NATS and a policy's directory, all gone afterwards."""
    with _place() as directory:
        model = await anyio.to_thread.run_sync(_make_model, directory)
        async with (
            EmbeddedPostgres(directory / "postgres", durable=False) as postgres,
            EmbeddedNats(directory / "nats") as nats,
        ):
            await anyio.to_thread.run_sync(upgrade, postgres.url)
            yield Services(directory, postgres.url, nats.url, model)


@asynccontextmanager
async def open_bench(
    services: Services, name: str, scaffold: Scaffold, *, context: int = CONTEXT, provider: str = "bubblewrap"
) -> AsyncIterator[Bench]:
    """A run of its own for one scaffold, with its gateway, runner and verifier."""
    run = f"check-{secrets.token_hex(6)}"
    directory = services.directory / run
    directory.mkdir(mode=0o755)
    config = Config.model_validate(
        {
            "run": {"name": run},
            "services": {"database_url": services.database_url, "nats_url": services.nats_url},
            "queue": {"max_attempts": 1},
            "stage": {"max_turns": 40, "max_context": context},
            "sampling": {"max_new_tokens": 4096},
            "rollout": {"slots": 1, "verify_slots": 1, "lease_ttl_s": 10.0},
            "sandbox": {"provider": provider},
        }
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedServer(services.model).serving())
        flow = await stack.enter_async_context(open_flow(config))
        await flow.bus.ensure_streams()
        await _publish(flow, directory)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        roles: list[Callable[[Flow], Coroutine[Any, Any, None]]] = [
            dispatcher, relay, reaper, ingest_steps, ingest_results, ingest_verdicts,
        ]  # fmt: skip
        for role in roles:
            tasks.start_soon(role, flow)
        settings = GatewaySettings(
            run=run,
            config=config,
            model_dir=services.model,
            server_urls=(server.url,),
            socket_path=directory / "gateway" / "gateway.sock",
            journal_dir=directory / "journal",
            admin_secret_file=directory / "secret",
        )
        engine = await stack.enter_async_context(open_engine(services.database_url, Role.GATEWAY))
        gateway = await stack.enter_async_context(Gateway.open(settings, engine, flow.bus, flow.run_id))
        tap = Tap(gateway.url, server, scaffold.manifest.auxiliary)
        socket = directory / "tap" / "gateway.sock"
        await stack.enter_async_context(tap.serving(socket))
        _start_workers(tasks, services, settings, tap, socket, directory, run, provider)
        yield Bench(name, scaffold, flow, tap, server, plugins.load("sandboxes", provider)(), socket)
        tasks.cancel_scope.cancel()


def _start_workers(
    tasks: TaskGroup,
    services: Services,
    gateway: GatewaySettings,
    tap: Tap,
    socket: Path,
    directory: Path,
    run: str,
    provider: str,
) -> None:
    def worker(name: str) -> WorkerSettings:
        urls = (services.database_url, services.nats_url)
        return WorkerSettings(run, *urls, directory / name, provider, 1, name)

    runner = RunnerSettings(worker("runner"), tap.url, gateway.admin_secret_file, socket)
    tasks.start_soon(partial(serve_rollouts, runner))
    tasks.start_soon(partial(serve_verifications, worker("verifier")))


async def _publish(flow: Flow, directory: Path) -> None:
    """Version 0, which the scripted server says that it has."""
    manifest = {"files": {}, "canary": {"ids": CANARY, "logprobs": [LOGPROB] * (len(CANARY) - 1)}}
    raw = json.dumps(manifest).encode()
    place = directory / "version"
    place.mkdir()
    (place / "manifest.json").write_bytes(raw)
    async with flow.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO policy_versions (run_id, version, path, manifest_sha) VALUES (:run, 0, :path, :sha)"
            ),
            {"run": flow.run_id, "path": str(place), "sha": hashlib.sha256(raw).hexdigest()},
        )


def _task(timeout_s: float) -> Task:
    return Task.from_files(
        {
            "task.toml": f"[agent]\ntimeout_sec = {timeout_s}\nmax_turns = 40\n".encode(),
            "instruction.md": b"Write the word done into the file out.\n",
            "tests/test.sh": TEST.encode(),
        }
    )


def _make_model(directory: Path) -> Path:
    """A policy's directory for its tokenizer; its weights are never loaded."""
    model = directory / "model"
    made = subprocess.run(
        [sys.executable, "-m", "trainer.policy", "--out", str(model)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise PenstockError(f"the check's policy could not be made: {made.stderr.strip().splitlines()[-1:]}")
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(content | {key: CONTEXT}))
    return model


@contextmanager
def _place() -> Iterator[Path]:
    """A new directory that PostgreSQL's user and those of sandboxes can pass through."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-check-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
