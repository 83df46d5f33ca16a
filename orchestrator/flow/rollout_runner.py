"""The runner: one rollout attempt from its lease to its result.

    lease → gateway session → sandbox with the environment's files → scaffold → what it changed → seal → RolloutFinished

| produces | waits for | unblocked by |
|---|---|---|
| RolloutFinished in the journal | work.rollout.*, a slot | the dispatcher, the end of other attempts |
| steps (through the gateway) | completions | rollout servers |

Whatever goes wrong is data: it becomes a failure class in `captured` and nowhere else. A lost lease cancels the attempt at any point; then
the session is closed and nothing is reported. So it is when the disk of the sandboxes is full: the attempt never began (flow.assignments).
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from scaffolds import find
from scaffolds.base import AgentLimits, Scaffold, TaskView
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.clock import clock
from orchestrator.contracts.errors import InfraFailure, PenstockError, ServiceError
from orchestrator.contracts.events import (
    ArtifactFile,
    RolloutAssigned,
    RolloutFinished,
    ToolCallTimed,
    encode,
)
from orchestrator.contracts.states import FailureClass, Purpose
from orchestrator.flow.assignments import Assignments
from orchestrator.flow.blackbox import endpoint_of, run_black
from orchestrator.flow.clocks import Clocks
from orchestrator.flow.crossing import LIMITS, TOTAL_BYTES, answer_bytes, excess, packed
from orchestrator.flow.gateways import Gateway, Gateways, known_secret, reached
from orchestrator.flow.managed import policy_of
from orchestrator.flow.measured import sandbox
from orchestrator.flow.outcome import Outcome, captured, judged, replayed
from orchestrator.flow.redact import redacted, redacted_files
from orchestrator.flow.whitebox import run_white
from orchestrator.flow.worker import Worker, WorkerSettings, environment_of, open_worker, sandbox_limits
from orchestrator.gateway_client import (
    Budget,
    GatewayAdmin,
    GatewayDrains,
    GatewayRefused,
    NativeLlm,
    OpenSession,
    Seal,
)
from orchestrator.log import get
from orchestrator.pool import history
from orchestrator.pool.leases import Lease
from orchestrator.pool.transact import transact
from orchestrator.progress import current
from orchestrator.rewards.speed import agent_seconds
from orchestrator.spent import counting, spending
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import Task

log = get(__name__)

SCRIPT = "record/script.json"
TOOL_TIMEOUT_S = 60.0  # a command that works for longer is ended and the policy told; the attempt's own clocks come before that


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """How to start a runner. `gateway_secret` is the file with the admin secret; `gateway_socket` is what sandboxes may see, None where
    gateways are on other hosts: then `others` may name more than the one at `gateway_url`."""

    worker: WorkerSettings
    gateway_url: str
    gateway_secret: Path
    gateway_socket: Path | None
    others: tuple[str, ...] = ()


async def serve_rollouts(settings: RunnerSettings) -> None:
    """Run rollouts until cancelled. Raises ServiceError, ConfigurationError or BusError when it cannot begin or go on, GatewayAway when no
    gateway answers."""
    async with open_worker(settings.worker, "penstock-runner") as worker:
        urls = (settings.gateway_url, *settings.others)
        log.info("runner.waiting", owner=worker.owner, gateways=urls)
        secret = await _secret(settings.gateway_secret)
        async with reached(urls, secret, settings.gateway_socket, worker.owner) as gateways:
            await gateways.until_one_answers()  # no work is taken before
            runner = RolloutRunner(worker, gateways)
            log.info("runner.ready", owner=worker.owner, slots=worker.slots)
            await Assignments(worker, RolloutAssigned, runner.attempt, gateways).serve(
                [
                    subjects.consume_work_rollout(worker.run, pool)
                    for pool in (subjects.POOL_DEFAULT, subjects.POOL_EVAL)
                ]
            )


async def _secret(file: Path) -> str:
    """The gateway's admin secret, which its first start makes: runner and gateway start in any order. ServiceError when it does not come."""
    deadline = anyio.current_time() + clock().gateway_start_s
    while True:
        try:
            if secret := file.read_text(encoding="utf-8").strip():
                return secret
            problem, late = "it is empty", anyio.current_time() > deadline
        except OSError as error:
            problem = error.strerror or "unknown"
            late = not isinstance(error, FileNotFoundError) or anyio.current_time() > deadline
        if late:
            raise ServiceError(
                f"the gateway's admin secret {file} cannot be read ({problem}): start the gateway, which makes it"
            )
        await anyio.sleep(0.1)


@dataclass(slots=True)
class _Record:
    """What an attempt has gathered so far, however it ends, and the gateway that it has."""

    gateway: Gateway
    scaffold: Scaffold | None = None
    opened: bool = False
    queued_s: float = 0.0  # opening the session and the sandbox
    clocks: Clocks | None = None
    tool_calls: list[ToolCallTimed] = field(default_factory=list)
    artifacts: list[ArtifactFile] = field(default_factory=list)


class RolloutRunner:
    """Runs attempts, any number at a time."""

    def __init__(self, worker: Worker, gateways: Gateways) -> None:
        self._worker = worker
        self._gateways = gateways

    async def attempt(self, lease: Lease) -> Outgoing:
        """The whole attempt; returns the result to send. Only cancellation (a lost lease), ServiceError, SandboxFull and GatewayDrains (it did
        not begin) end it otherwise."""
        record = _Record(self._gateways.choose())
        try:
            with counting() as spent, spending("other"), record.gateway.serving() as scope:
                outcome = await captured(partial(self._episode, lease, record))
                with spending("seal"):
                    outcome, seal = await self._seal(lease, outcome, record)
            if scope.cancelled_caught:
                reason = f"gateway: {record.gateway.url} is away, and another one answers"
                outcome, seal = Outcome(FailureClass.INFRA_FAILURE, reason, resumable=True), None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close(lease, record)
            raise
        if outcome.scaffold_error:
            await self._count("scaffold_errors")
        return self._result(lease, outcome, seal, record, spent.seconds)

    async def _episode(self, lease: Lease, record: _Record) -> Outcome:
        task = Task.from_message(lease.body)
        record.scaffold = scaffold = find.find(lease.scaffold)
        limits = self._limits(lease, task, scaffold)
        environment = self._environment(task)
        began = time.monotonic()
        current().works(f"the session of rollout {lease.rollout_id}", on="gateway")
        gateway = record.gateway
        try:
            with spending("session"):
                session = await self._open_session(gateway.admin, lease, task, scaffold, limits)
        except GatewayDrains:
            gateway.draining = True
            raise
        record.opened = True
        view = TaskView(task.name, lease.domain, task.instruction, environment.work_dir)
        record.clocks = clocks = Clocks(
            timeout_s=limits.timeout_s,
            stall_s=min(task.settings.agent.stall_s, self._worker.config.rollout.stall_s),
            completion_s=max(60.0, self._worker.config.rollout.timeout_s),
            held=partial(self._held, gateway.admin, lease),
        )
        walls = sandbox_limits(self._worker.config.sandbox, limits.timeout_s, scaffold.manifest.needs)
        if scaffold.manifest.kind == "white":
            spec = environment.spec(environment.files, walls)
        else:
            black = scaffold.black()
            placed = black.files(view, endpoint_of(session), limits)
            spec = replace(
                environment.spec({**environment.files, **placed}, walls),
                binds=black.binds(),
                gateway_socket=gateway.socket,
                gateway_address=_address(gateway),
            )

        current().works(f"the sandbox of rollout {lease.rollout_id}", on="sandbox")
        with spending("sandbox"):  # opening and closing: what is done in it has phases of its own
            async with sandbox(self._worker.provider, spec) as box:
                current().works(f"the scaffold of rollout {lease.rollout_id}", on="scaffold")
                record.queued_s = time.monotonic() - began

                async def work() -> Outcome:
                    if scaffold.manifest.kind == "black":
                        activity = partial(gateway.admin.activity, **key_of(lease))
                        return await run_black(black, view, box, session, clocks, limits, activity)
                    async with NativeLlm(gateway.url, session.token) as native:
                        policy = policy_of(self._worker.config.rollout.context, lease.scaffold)
                        return await run_white(
                            scaffold, view, box, native, clocks, limits, record.tool_calls, policy
                        )

                with spending("agent"):
                    outcome = redacted(await captured(work), session.token)
                current().works(f"what rollout {lease.rollout_id} changed", on="sandbox")
                with spending("changes"):
                    changed = await box.changed(LIMITS)
        if (reason := excess(changed, outcome.answer)) is None:
            record.artifacts = redacted_files(packed(changed), session.token)
        elif not outcome.infra:
            answer = outcome.answer if answer_bytes(outcome.answer) <= TOTAL_BYTES else None
            outcome = replace(outcome, failure=FailureClass.POLICY_FAILURE, reason=reason, answer=answer)
        return outcome

    def _environment(self, task: Task) -> Environment:
        try:
            return environment_of(task, self._worker)
        except ValueError as error:  # accepted under another configuration, or by another runner's provider
            raise InfraFailure(f"task: {error}") from error

    def _limits(self, lease: Lease, task: Task, scaffold: Scaffold) -> AgentLimits:
        config, asked = self._worker.config, task.settings.agent
        timeout_s = min(
            asked.timeout_sec, config.rollout.timeout_s, scaffold.manifest.timeout_s or asked.timeout_sec
        )
        stage = config.stage.all[lease.stage]
        turns = asked.max_turns or stage.turns(lease.domain)
        return AgentLimits(turns, stage.context(lease.domain), min(TOOL_TIMEOUT_S, timeout_s + 5), timeout_s)

    async def _open_session(
        self, admin: GatewayAdmin, lease: Lease, task: Task, scaffold: Scaffold, limits: AgentLimits
    ) -> OpenSession:
        try:
            with known_secret():
                return await admin.open_session(
                    run=self._worker.run,
                    rollout=lease.rollout_id,
                    attempt=lease.attempt,
                    epoch=lease.epoch,
                    budget=Budget(max_turns=limits.turns, max_context=limits.context),
                    sampling=sampling_of(lease),
                    scripted=script_of(task) if lease.purpose == Purpose.RECORD else None,
                    auxiliary=scaffold.manifest.auxiliary,
                    replayable=scaffold.manifest.replayable,
                    version=lease.pinned_version,
                    group=lease.group_id,
                )
        except GatewayRefused as error:
            raise InfraFailure(f"gateway: {error}") from error

    async def _seal(self, lease: Lease, outcome: Outcome, record: _Record) -> tuple[Outcome, Seal | None]:
        """End the session, and hold a program's own word against what the gateway saw."""
        if not record.opened:
            return outcome, None
        current().works(f"the seal of rollout {lease.rollout_id}", on="gateway")
        try:
            seal = await record.gateway.admin.seal(**key_of(lease))
        except PenstockError as error:
            log.warning("session.unsealed", error=str(error))
            if outcome.infra:
                return outcome, None
            reason = f"gateway: not sealed: {error}"
            return Outcome(FailureClass.INFRA_FAILURE, reason, log=outcome.log, resumable=True), None
        if record.clocks is not None:
            record.clocks.replayed(seal.replayed_s)
        return replayed(judged(outcome, seal), seal), seal

    async def _close(self, lease: Lease, record: _Record) -> None:
        """Close the session of an attempt that reports nothing. Best effort: it expires by itself."""
        if not record.opened:
            return
        try:
            with anyio.move_on_after(clock().gateway_close_s):
                await record.gateway.admin.abort(**key_of(lease))
        except PenstockError as error:
            log.info("session.left_open", error=str(error))

    async def _held(self, admin: GatewayAdmin, lease: Lease) -> float:
        """Seconds for which the gateway has held the attempt's completions in flight; 0 where it does not say."""
        with anyio.move_on_after(clock().gateway_held_s):
            try:
                return (await admin.activity(**key_of(lease))).held_s
            except PenstockError as error:
                log.info("gateway.silent", error=str(error))
        return 0.0

    async def _count(self, counter: str) -> None:
        async def add(connection: AsyncConnection) -> None:
            await history.count(connection, self._worker.run_id, counter)

        await transact(self._worker.engine, add, at="worker.count")

    def _result(
        self, lease: Lease, outcome: Outcome, seal: Seal | None, record: _Record, spent: Mapping[str, float]
    ) -> Outgoing:
        waited = seal.queued_s if seal is not None else 0.0
        wall_s = record.clocks.elapsed_s if record.clocks is not None else 0.0
        manifest = record.scaffold.manifest if record.scaffold is not None else None
        event = RolloutFinished(
            run=self._worker.run,
            rollout=lease.rollout_id,
            attempt=lease.attempt,
            epoch=lease.epoch,
            failure_class=outcome.failure,
            reason=outcome.reason,
            steps=seal.steps if seal else 0,
            last_idx=seal.last_idx if seal else -1,
            digest=seal.digest if seal else "",
            marks=list(seal.marks) if seal else [],
            answer=outcome.answer,
            artifacts=[] if outcome.infra else record.artifacts,
            tool_calls=record.tool_calls,
            log=outcome.log,
            agent_s=agent_seconds(wall_s, waited),
            queued_s=record.queued_s + waited,
            scaffold=lease.scaffold,
            scaffold_version=manifest.version if manifest else "",
            scaffold_sha=manifest.sha if manifest else "",
            resumable=outcome.resumable and manifest is not None and manifest.replayable,
            replay=outcome.replay or "",
            replayed=seal.replayed if seal else 0,
            spent={phase: round(seconds, 6) for phase, seconds in spent.items()},
        )
        log.info(
            "rollout.finished",
            failure=event.failure_class,
            reason=event.reason,
            steps=event.steps,
            agent_s=round(event.agent_s, 3),
            queued_s=round(event.queued_s, 3),
            spent={phase: round(seconds, 3) for phase, seconds in spent.items()},
        )
        msg_id = f"{lease.rollout_id}:{lease.epoch}:0:result"
        return Outgoing(
            subjects.results_rollout(self._worker.run), msg_id, RolloutFinished.schema(), encode(event)
        )


def key_of(lease: Lease) -> dict[str, int]:
    """How the gateway's admin API names the session of a lease."""
    return {"rollout": lease.rollout_id, "attempt": lease.attempt, "epoch": lease.epoch}


def sampling_of(lease: Lease) -> dict[str, Any]:
    """What a session's sampling differs in from the run's configuration: evaluation is repeatable, and may have its own parameters."""
    if lease.purpose == Purpose.TRAIN:
        return {}
    return {"seed": lease.seed, **lease.sampling}


def script_of(task: Task) -> list[dict[str, Any]] | None:
    """The replies that replace the policy in a recording, None to record the policy itself."""
    body = task.files.get(SCRIPT)
    if body is None:
        return None
    try:
        replies = json.loads(body)
    except ValueError as error:
        raise InfraFailure(f"{SCRIPT}: {error}") from error
    if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
        raise InfraFailure(f"{SCRIPT} must be a list of assistant messages")
    return replies


def _address(gateway: Gateway) -> str:
    """host:port by which sandboxes on other machines reach it; empty where it is of this one."""
    place = gateway.place() if gateway.remote else None
    return "" if place is None else f"{place[0]}:{place[1]}"
