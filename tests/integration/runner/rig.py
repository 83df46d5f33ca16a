"""Shared by the tests of runners: an orchestrator, runners started as in production, tasks, and a gateway."""

import json
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import text

from orchestrator.app import open_context
from orchestrator.contracts.states import Purpose
from orchestrator.gateway.server import Gateway, GatewaySettings
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import dispatcher
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.reaper import reaper
from orchestrator.roles.relay import relay
from orchestrator.runner.rollout_runner import RunnerSettings, serve_rollouts
from orchestrator.runner.verify_runner import serve_verifications
from orchestrator.runner.worker import WorkerSettings
from orchestrator.settings.config import Config
from orchestrator.tasks.harbor import Task
from tests import builders
from tests.waiting import eventually
from trainer.checkpoint import Checkpoint

PATIENCE_S = 120.0  # a machine may be busy with other things


def a_task(
    *script: Mapping[str, Any],
    check: str = '[ "$(cat out 2>/dev/null)" = done ]',
    settings: str = "",
    files: Mapping[str, bytes] | None = None,
) -> Task:
    """A task whose test rewards `check` with 1, and the policy's reply in a recording of it."""
    test = f"mkdir -p /logs/verifier; if {check}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    return Task.from_files(
        {
            "task.toml": settings.encode(),
            "instruction.md": b"Write done into the file out.",
            "tests/test.sh": test.encode(),
            "record/script.json": json.dumps(script).encode(),
            **(files or {}),
        }
    )


def runs(*commands: str) -> dict[str, Any]:
    """The policy calls commands."""
    calls = [{"name": "bash", "arguments": {"command": command}} for command in commands]
    return {"reasoning": "so", "content": "", "tool_calls": calls}


def says(content: str) -> dict[str, Any]:
    """The policy answers."""
    return {"reasoning": "so", "content": content, "tool_calls": []}


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A run with its orchestrator. Runners are started by the tests."""

    context: OrchestratorContext
    settings: RunnerSettings
    tasks: anyio.abc.TaskGroup
    gateway: GatewaySettings

    def start_runner(self) -> None:
        self.tasks.start_soon(serve_rollouts, self.settings)

    def start_another_runner(self) -> None:
        worker = replace(
            self.settings.worker, journal=self.settings.worker.journal.with_name("another"), owner="another"
        )
        self.tasks.start_soon(serve_rollouts, replace(self.settings, worker=worker))

    def start_verifier(self) -> None:
        worker = self.settings.worker
        journal = worker.journal.with_name("verifier")
        self.tasks.start_soon(
            serve_verifications,
            WorkerSettings(
                run=worker.run,
                database_url=worker.database_url,
                nats_url=worker.nats_url,
                journal=journal,
                provider=worker.provider,
                slots=worker.slots,
                owner="verifier",
            ),
        )

    def start_ingest(self) -> None:
        """Results and verdicts go into Postgres from now on."""
        self.tasks.start_soon(ingest_results, self.context)
        self.tasks.start_soon(ingest_verdicts, self.context)

    async def submit(
        self,
        task: Task,
        *,
        scaffold: str = "shell",
        pool: str = "eval",
        purpose: Purpose = Purpose.RECORD,
    ) -> int:
        """Accept a group of one; returns its rollout."""
        name = secrets.token_hex(6)
        new = NewGroup(
            submission=name,
            task_sha=bytes.fromhex(task.content_hash),
            task_name=task.name,
            domain="general",
            settings=task.settings.model_dump(mode="json"),
            body=task.to_message(),
            purpose=purpose,
            scaffold=scaffold,
            size=1,
            seed=7,
            pool=pool,
        )
        async with self.context.engine.begin() as connection:
            await accept(connection, self.context.run_id, new)
            found = await connection.scalar(
                text("SELECT rollout_id FROM rollouts JOIN groups USING (group_id) WHERE submission = :name"),
                {"name": name},
            )
        self.context.signals.work.set()
        return int(found)

    async def rows(self, query: str, **parameters: Any) -> Sequence[Any]:
        async with self.context.engine.connect() as connection:
            return (await connection.execute(text(query), parameters)).all()

    async def until(self, query: str, wanted: Callable[[Any], bool], **parameters: Any) -> Any:
        """Wait until the query's first row is as wanted; returns it."""
        row: Any = None

        async def first() -> Any:
            nonlocal row
            found = await self.rows(query, **parameters)
            row = found[0] if found else None
            return row

        try:
            return await eventually(
                first, lambda row: row is not None and wanted(row), within_s=PATIENCE_S, every_s=0.02
            )
        except TimeoutError:
            raise AssertionError(f"{query}: still {row}") from None

    async def state(self, rollout: int, *states: str) -> Any:
        """Wait until a rollout is in one of the states; returns its row."""
        return await self.until(
            "SELECT * FROM rollouts WHERE rollout_id = :id", lambda row: row.state in states, id=rollout
        )

    async def lease_runs_out(self, rollout: int) -> None:
        """As if its holder had been silent for the lease's time to live."""
        async with self.context.engine.begin() as connection:
            await connection.execute(
                text("UPDATE rollouts SET lease_until = now() - interval '1 second' WHERE rollout_id = :id"),
                {"id": rollout},
            )

    async def counted(self, *names: str) -> None:
        """Wait until something was counted under one of the names."""
        await self.until(
            "SELECT coalesce(sum(value), 0) AS n FROM counters WHERE name = ANY(:names)",
            lambda row: row.n >= 1,
            names=list(names),
        )

    async def verdict(self, rollout: int) -> float:
        """Wait for the verdict; returns the reward."""
        await self.state(rollout, "verified", "lost")
        (row,) = await self.rows("SELECT reward FROM verdicts WHERE rollout_id = :id", id=rollout)
        return float(row.reward)

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Version 0 is the version that the rollout servers must serve."""
        async with self.context.engine.begin() as connection:
            await connection.execute(
                text(
                    "INSERT INTO policy_versions (run_id, version, path, manifest_sha) VALUES (:run, 0, :path, :sha)"
                ),
                {
                    "run": self.context.run_id,
                    "path": str(checkpoint.path),
                    "sha": checkpoint.manifest_sha,
                },
            )

    @asynccontextmanager
    async def runner_process(
        self, gateway_url: str = "", log: int | None = None, no_progress_s: float = 0.0
    ) -> AsyncIterator["subprocess.Popen[bytes]"]:
        """A runner as a process of its own, killed with the context at the latest. `log`: a descriptor for its output.
        `no_progress_s`: of its watchdog; 0: no watchdog and no heartbeat."""
        worker = self.settings.worker
        arguments = [
            worker.run,
            worker.database_url,
            worker.nats_url,
            str(worker.journal),
            gateway_url or self.settings.gateway_url,
            str(self.settings.gateway_secret),
            str(self.settings.gateway_socket),
            str(no_progress_s),
        ]
        process = _begin(arguments, log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    async def attempts(self, rollout: int) -> Sequence[Any]:
        return await self.rows("SELECT * FROM attempts WHERE rollout_id = :id ORDER BY attempt", id=rollout)


def _begin(arguments: Sequence[str], log: int | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.integration.runner.runner_process", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log)


Opens = Callable[..., AbstractAsyncContextManager[Rig]]
"""Opens a rig; keyword arguments go to `open_rig`."""


@asynccontextmanager
async def open_rig(
    database_url: str,
    nats_url: str,
    directory: Path,
    model: Path,
    *,
    ingest: bool = True,
    server_url: str = "http://127.0.0.1:9",
    gateway_apart: bool = False,
    reward: Mapping[str, Any] | None = None,
    stage: Mapping[str, Any] | None = None,
    sandbox: Mapping[str, Any] | None = None,
    provider: str = "bubblewrap",
    **rollout: Any,
) -> AsyncIterator[Rig]:
    """An orchestrator and a gateway on real services, and the settings of a runner. `reward`, `rollout`, `stage` and `sandbox` go to their sections;
    `provider` is that of the sandboxes.

    A lease does not run out while its holder lives, on a busy machine either; `Rig.lease_runs_out` ends it.
    No rollout server runs, and nothing listens at the default URL: the policy plays scripts. Groups are accepted without the bus.
    With `gateway_apart` the test starts the gateway itself, with the settings `rig.gateway`.
    """
    run = f"r{secrets.token_hex(6)}"
    config = Config.model_validate(
        {
            "run": {"name": run},
            "services": {"database_url": database_url, "nats_url": nats_url},
            **builders.SHORT,
            "stage": builders.SHORT["stage"] if stage is None else stage,
            "rollout": {
                **builders.SHORT["rollout"],
                "slots": 4,
                "lease_ttl_s": 15.0,
                "retry_delay_s": 0.05,
                **rollout,
            },
            "reward": reward or {},
            "sandbox": {**builders.SHORT.get("sandbox", {}), "provider": provider, **(sandbox or {})},
        }
    )
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(open_context(config))
        await context.bus.ensure_streams()
        # The session's server remembers message ids for two minutes, and ids start again in every test's database.
        async with context.engine.begin() as connection:
            await connection.execute(
                text("SELECT setval('rollouts_rollout_id_seq', :n)"), {"n": secrets.randbelow(1 << 40) + 1}
            )
        tasks = await stack.enter_async_context(anyio.create_task_group())
        roles: list[Callable[[OrchestratorContext], Coroutine[Any, Any, None]]] = [
            dispatcher,
            ingest_steps,
            relay,
            reaper,
        ]
        for role in roles:
            tasks.start_soon(role, context)
        gateway = GatewaySettings(
            run=run,
            config=config,
            model_dir=model,
            server_urls=(server_url,),
            socket_path=directory / "socket" / "gateway.sock",
            journal_dir=directory / "journal",
            admin_secret_file=directory / "admin-secret",
            database_url=database_url,
            nats_url=nats_url,
            url_file=directory / "url",
        )
        url = ""
        if not gateway_apart:
            own = await stack.enter_async_context(open_engine(database_url, Role.GATEWAY))
            url = (
                await stack.enter_async_context(Gateway.open(gateway, own, context.bus, context.run_id))
            ).url
        worker = WorkerSettings(
            run=run,
            database_url=database_url,
            nats_url=nats_url,
            journal=directory / "runner",
            provider=provider,
            slots=4,
            owner="runner",
        )
        settings = RunnerSettings(
            worker=worker,
            gateway_url=url,
            gateway_secret=gateway.admin_secret_file,
            gateway_socket=gateway.socket_path,
        )
        rig = Rig(context=context, settings=settings, tasks=tasks, gateway=gateway)
        if ingest:
            rig.start_ingest()
        yield rig
        tasks.cancel_scope.cancel()
