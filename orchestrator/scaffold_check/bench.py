"""The stack that a check runs on: everything real but the policy, in one process and one temporary directory."""

import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from scaffolds.base import Scaffold

from orchestrator.app import open_context
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.marks import MarkReason
from orchestrator.contracts.states import ROLLOUT_TERMINAL, FailureClass, Purpose, RolloutState
from orchestrator.gateway.server import Gateway, GatewaySettings
from orchestrator.pool.engine import Role
from orchestrator.pool.opened import opened
from orchestrator.pool.steps import StoredStep, trajectories
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.queries.scaffold_check import PlayedStep, played_attempt, rollout_of, state_of
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import dispatcher
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.reaper import reaper
from orchestrator.roles.relay import relay
from orchestrator.runner.rollout_runner import RunnerSettings, serve_rollouts
from orchestrator.runner.verify_runner import serve_verifications
from orchestrator.runner.worker import WorkerSettings
from orchestrator.runtime import plugins
from orchestrator.scaffold_check.tap import Request, Script, Tap
from orchestrator.scripted.server import Exchange, ScriptedServer
from orchestrator.scripted.services import CONTEXT, Services
from orchestrator.scripted.version import publish_version
from orchestrator.settings.config import Config
from orchestrator.tasks.harbor import Task
from sandboxes.base import Provider

GRADE_S = 60.0  # in addition to an attempt's own time: queueing, grading
TEST = 'mkdir -p /logs/verifier; [ "$(cat out)" = done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One attempt from the data pool, and its observed requests. `sent`: completions of the rollout server."""

    failure: FailureClass
    reason: str
    reward: float | None
    log: str
    steps: Sequence[StoredStep]
    rows: Sequence[PlayedStep]
    marked: dict[int, set[str]]
    requests: Sequence[Request]
    sent: Sequence[Exchange]

    @property
    def own(self) -> list[Request]:
        """The requests that are the policy's work."""
        return [request for request in self.requests if request.number is not None]

    @property
    def side_calls(self) -> list[Request]:
        """The policy's requests that were recorded as another conversation's, and so do not train."""
        digests: dict[str, set[bool]] = {}
        for row in self.rows:
            marked = MarkReason.SIDE_CONVERSATION in self.marked.get(row.idx, ())
            digests.setdefault(row.request_digest.hex(), set()).add(marked)
        return [request for request in self.own if digests.get(request.digest) == {True}]

    @property
    def passed(self) -> bool:
        return self.failure is FailureClass.COMPLETED and self.reward == 1.0


@dataclass(slots=True, kw_only=True)
class Bench:
    """Plays scripts against one scaffold."""

    name: str
    scaffold: Scaffold
    context: OrchestratorContext
    tap: Tap
    server: ScriptedServer
    provider: Provider
    socket: Path

    async def play(self, script: Script, *, timeout_s: float = 120.0) -> Played:
        """One attempt at the check's task. PenstockError when it does not end in time."""
        self.tap.play(script)
        before = len(self.server.sent)
        rollout = await self._submit(_task(timeout_s))
        try:
            with anyio.fail_after(timeout_s + GRADE_S):
                while await self._state(rollout) not in ROLLOUT_TERMINAL:
                    await anyio.sleep(0.05)
        except TimeoutError:
            raise PenstockError(f"the attempt did not end within {timeout_s + GRADE_S:g} s") from None
        async with self.context.engine.connect() as connection:
            attempt = await played_attempt(connection, rollout)
            found = await trajectories(connection, self.context.run_id, [(rollout, attempt.attempt)])
        return Played(
            failure=attempt.failure_class,
            reason=attempt.reason or "",
            reward=attempt.reward,
            log=attempt.log or "",
            steps=found.get(rollout, []),
            rows=attempt.steps,
            marked=attempt.marked,
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
        async with self.context.engine.begin() as connection:
            await accept(connection, self.context.run_id, new)
            rollout = await rollout_of(connection, name)
        self.context.signals.work.set()
        return rollout

    async def _state(self, rollout: int) -> RolloutState:
        async with self.context.engine.connect() as connection:
            return await state_of(connection, rollout)


@asynccontextmanager
async def open_bench(
    services: Services,
    name: str,
    scaffold: Scaffold,
    *,
    max_context: int = CONTEXT,
    provider: str = "bubblewrap",
) -> AsyncIterator[Bench]:
    """A separate run for one scaffold, with its gateway, runner and verifier."""
    run = f"check-{secrets.token_hex(6)}"
    directory = services.directory / run
    directory.mkdir(mode=0o755)
    config = _config(run, services, max_context, provider)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedServer(services.model).serving())
        context = await stack.enter_async_context(open_context(config))
        await context.bus.ensure_streams()
        await publish_version(context.engine, context.run_id, directory / "version")
        tasks = await stack.enter_async_context(anyio.create_task_group())
        roles: list[Callable[[OrchestratorContext], Coroutine[Any, Any, None]]] = [
            dispatcher,
            relay,
            reaper,
            ingest_steps,
            ingest_results,
            ingest_verdicts,
        ]
        for role in roles:
            tasks.start_soon(role, context)
        settings = GatewaySettings(
            run=run,
            config=config,
            model_dir=services.model,
            server_urls=(server.url,),
            socket_path=directory / "gateway" / "gateway.sock",
            journal_dir=directory / "journal",
            admin_secret_file=directory / "secret",
        )
        engine = await stack.enter_async_context(
            opened(services.database_url, Role.GATEWAY, size=8, name="penstock-gateway")
        )
        gateway = await stack.enter_async_context(Gateway.open(settings, engine, context.bus, context.run_id))
        tap = Tap(gateway=gateway.url, server=server, auxiliary=scaffold.manifest.auxiliary)
        socket = directory / "tap" / "gateway.sock"
        await stack.enter_async_context(tap.serving(socket))
        _start_workers(tasks, services, settings, tap, socket, directory, run, provider)
        yield Bench(
            name=name,
            scaffold=scaffold,
            context=context,
            tap=tap,
            server=server,
            provider=plugins.load("sandboxes", provider)(),
            socket=socket,
        )
        tasks.cancel_scope.cancel()


def _config(run: str, services: Services, max_context: int, provider: str) -> Config:
    """One attempt of each rollout, in one small sandbox."""
    return Config.model_validate(
        {
            "run": {"name": run},
            "services": {"database_url": services.database_url, "nats_url": services.nats_url},
            "queue": {"max_attempts": 1},
            "stage": {"max_turns": 40, "max_context": max_context},
            "sampling": {"max_new_tokens": 4096},
            "rollout": {
                "slots": 1,
                "verify_slots": 1,
                "lease_ttl_s": 10.0,
                "timeout_s": 300.0,
                "completion_s": 300.0,
                "tool_timeout_s": 60.0,
            },
            "sandbox": {"provider": provider, "memory_mb": 512, "processes": 64, "cpu_s": 60, "disk_mb": 64},
        }
    )


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
        return WorkerSettings(
            run=run,
            database_url=services.database_url,
            nats_url=services.nats_url,
            journal=directory / name,
            provider=provider,
            slots=1,
            owner=name,
        )

    runner = RunnerSettings(
        worker=worker("runner"),
        gateway_url=tap.url,
        gateway_secret=gateway.admin_secret_file,
        gateway_socket=socket,
    )
    tasks.start_soon(partial(serve_rollouts, runner))
    tasks.start_soon(partial(serve_verifications, worker("verifier")))


def _task(timeout_s: float) -> Task:
    return Task.from_files(
        {
            "task.toml": f"[agent]\ntimeout_sec = {timeout_s}\nmax_turns = 40\n".encode(),
            "instruction.md": b"Write the word done into the file out.\n",
            "tests/test.sh": TEST.encode(),
        }
    )
