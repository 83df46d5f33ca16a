"""The runner: one rollout attempt from its lease to its result.

    lease → gateway session → sandbox with the environment's files → scaffold → changed files → seal → RolloutFinished

| produces | waits for | unblocked by |
|---|---|---|
| RolloutFinished in the journal | work.rollout.*, a slot | the dispatcher, the end of other attempts |
| steps (through the gateway) | completions | rollout servers |

Every failure is data: `captured`, and nothing else, turns it into a failure class. A lost lease cancels the attempt at any point; then the
session is closed and nothing is reported. The same holds when the sandboxes' disk is full: the attempt never started (runner.assignments).
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from scaffolds import find
from scaffolds.base import AgentLimits, BlackBox, Scaffold, ScaffoldKind, Solution, TaskView
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.errors import InfraFailure, PenstockError, ServiceError
from orchestrator.contracts.events import RolloutAssigned
from orchestrator.contracts.states import FailureClass, Purpose, SlotPhase
from orchestrator.gateway_client import (
    GatewayAdmin,
    GatewayDrains,
    GatewayRefused,
    OpenSession,
    Seal,
    SessionBudget,
)
from orchestrator.pool import transitions
from orchestrator.pool.leases import Lease, whole_task
from orchestrator.pool.transact import transact
from orchestrator.runner.assignments import Assignments
from orchestrator.runner.attempt_result import AttemptRecord, key_of, result_of
from orchestrator.runner.attempt_work import AgentStep, AttemptWork
from orchestrator.runner.blackbox import endpoint_of
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.gateways import (
    Gateways,
    KnownGateway,
    known_secret,
    reached,
)
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.outcome import (
    AttemptOutcome,
    captured,
    judged,
    replayed,
)
from orchestrator.runner.skills import copy_skills
from orchestrator.runner.worker import (
    Worker,
    WorkerSettings,
    environment_of,
    open_worker,
    sandbox_limits,
)
from orchestrator.runtime.liveness import current
from orchestrator.runtime.log import get
from orchestrator.runtime.phase_timer import collect, phase
from orchestrator.settings.timeouts import timeouts
from orchestrator.tasks.artifact_blobs import carried
from orchestrator.tasks.artifacts import limits_of
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.extras import mcp_servers, refusals, skills_dir
from orchestrator.tasks.harbor import SCRIPT, SOLUTION, Task
from orchestrator.tasks.multi_step import steps_of
from orchestrator.tasks.network import access, of_agent
from orchestrator.tasks.resources import granted
from orchestrator.tasks.verdict import shell_options
from sandboxes.base import Limits, Sandbox, SandboxError, SandboxSpec
from sandboxes.system import system_of
from sandboxes.text_files import read_text

log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How to start a runner. `gateway_secret` is the file with the admin secret; `gateway_socket` is the socket that sandboxes may see, None if the
    gateways are on other hosts: then `others` may list more than the one at `gateway_url`."""

    worker: WorkerSettings
    gateway_url: str
    gateway_secret: Path
    gateway_socket: Path | None
    others: tuple[str, ...] = ()


async def serve_rollouts(settings: RunnerSettings) -> None:
    """Run rollouts until cancelled. Raises ServiceError, ConfigurationError or BusError when it cannot start or continue, GatewayAway when no
    gateway answers."""
    async with open_worker(settings.worker, "penstock-runner") as worker:
        urls = (settings.gateway_url, *settings.others)
        log.info("runner.waiting", owner=worker.owner, gateways=urls)
        secret = await _secret(settings.gateway_secret)
        async with reached(urls, secret, settings.gateway_socket, worker.owner) as gateways:
            await gateways.until_one_answers()  # no work is taken before this
            runner = RolloutRunner(worker, gateways)
            log.info("runner.ready", owner=worker.owner, slots=worker.slots)
            await Assignments(worker, RolloutAssigned, runner.attempt, gate=gateways).serve(
                [
                    subjects.consume_work_rollout(worker.run, pool)
                    for pool in (subjects.POOL_DEFAULT, subjects.POOL_EVAL)
                ]
            )


async def _secret(file: Path) -> str:
    """The gateway's admin secret. The gateway creates it at its first start; both may start in any order. ServiceError when it does not appear."""
    deadline = anyio.current_time() + timeouts().gateway_start_s
    while True:
        try:
            if secret := read_text(file).strip():
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


class RolloutRunner:
    """Runs attempts, any number concurrently."""

    def __init__(self, worker: Worker, gateways: Gateways) -> None:
        self._worker = worker
        self._gateways = gateways

    async def attempt(self, lease: Lease) -> Outgoing:
        """The whole attempt; returns the result to send. Ends otherwise only by cancellation (a lost lease), ServiceError, SandboxFull or
        GatewayDrains (it did not start)."""
        record = AttemptRecord(gateway=self._gateways.choose())
        try:
            with collect() as spent, phase(SlotPhase.OTHER), record.gateway.serving() as scope:
                outcome = await captured(partial(self._in_sandbox, lease, record), agent=False)
                with phase(SlotPhase.SEAL):
                    outcome, seal = await self._seal(lease, outcome, record)
            if scope.cancelled_caught:
                reason = f"gateway: {record.gateway.url} is away, and another one answers"
                outcome, seal = (
                    AttemptOutcome(failure=FailureClass.INFRA_FAILURE, reason=reason, resumable=True),
                    None,
                )
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close(lease, record)
            raise
        if outcome.scaffold_error:
            await self._count("scaffold_errors")
        may_cross = limits_of(self._worker.config.sandbox)
        return result_of(self._worker.run, lease, outcome, seal, record, spent.seconds, may_cross)

    async def _in_sandbox(self, lease: Lease, record: AttemptRecord) -> AttemptOutcome:
        """Open the session and the sandbox, and do the attempt's work in it. What happened is also in `record`, whatever ends it."""
        task = await self._task(lease)
        record.scaffold = scaffold = find.find(lease.scaffold)
        _check_possible(lease, task, scaffold)
        solutions: Sequence[Solution | None] = [None] * len(steps_of(task))
        if scaffold.manifest.solution:
            solutions = await self._solutions(lease)
        limits = self._limits(lease, task, scaffold)
        environment = self._environment(task)
        started_at = time.monotonic()
        session = await self._open_session(record, lease, task, scaffold, limits)
        limits = replace(limits, context=session.context)
        agent_steps = self._agent_steps(lease, task, scaffold, environment.work_dir, limits, solutions)
        record.clocks = clocks = self._clocks(lease, record.gateway.admin, task, scaffold, limits)
        black = scaffold.black() if scaffold.manifest.kind == ScaffoldKind.BLACK else None
        section = granted(self._worker.config.sandbox, task.settings.environment)
        longest = max(each.limits.timeout_s for each in agent_steps)
        outer_limits = sandbox_limits(section, longest, scaffold.manifest.needs)
        if black is None:
            spec = environment.spec(environment.files, outer_limits)
        else:
            spec = _spec_of_program(black, environment, outer_limits, agent_steps[0], session, record.gateway)
        within = environment.services_s
        current().busy(f"the sandbox of rollout {lease.rollout_id}", on="sandbox", within=within)
        reachable = access(of_agent(task.settings), section)
        ended = False
        # The work inside has its own phases.
        with phase(SlotPhase.SANDBOX), tolerate_failed_removal(lambda: ended):
            async with open_sandbox(self._worker.provider, spec, reachable) as sandbox:
                record.system = system_of(sandbox)
                await _prepare(sandbox, lease, task, scaffold)
                record.queued_s = time.monotonic() - started_at
                work = AttemptWork(
                    worker=self._worker,
                    lease=lease,
                    gateway=record.gateway,
                    session=session,
                    scaffold=scaffold,
                    sandbox=sandbox,
                    pristine=environment,
                    clocks=clocks,
                    tool_calls=record.tool_calls,
                    artifacts=record.artifacts,
                )
                outcome = await work.run(agent_steps, black)
                record.queued_s += work.between_s
                with phase(SlotPhase.CHANGES):
                    record.left = carried(record.artifacts, outcome.answer)
                    await self._worker.files.keep(record.left.parts)
                ended = True
        return outcome

    def _agent_steps(
        self,
        lease: Lease,
        task: Task,
        scaffold: Scaffold,
        work_dir: str,
        limits: AgentLimits,
        solutions: Sequence[Solution | None],
    ) -> list[AgentStep]:
        """The steps of the task as their agents get them, each with its own time; `solutions`: one a step."""
        declared = task.settings.environment
        return [
            AgentStep(
                step=step,
                view=TaskView(
                    name=lease.task_name,
                    domain=lease.domain,
                    instruction=step.task.instruction,
                    work_dir=work_dir,
                    solution=solution,
                    mcp_servers=mcp_servers(declared) if scaffold.manifest.mcp else (),
                ),
                limits=self._of_step(limits, self._timeout_s(step.task, scaffold)),
            )
            for step, solution in zip(steps_of(task), solutions, strict=True)
        ]

    def _clocks(
        self, lease: Lease, admin: GatewayAdmin, task: Task, scaffold: Scaffold, limits: AgentLimits
    ) -> Clocks:
        section, own_s = self._worker.config.rollout, task.settings.agent.stall_s
        stall_s = section.stall_s if own_s is None else own_s
        return Clocks(
            timeout_s=limits.timeout_s,
            # A solution may wait in silence: it has its time, as when it is vetted.
            stall_s=None if scaffold.manifest.solution else stall_s,
            completion_s=section.completion_s,
            held=partial(self._held, admin, lease),
            cut_off=partial(self._cut_off, admin, lease),
            started=lease.began,
        )

    async def _task(self, lease: Lease) -> Task:
        try:
            with phase(SlotPhase.SESSION):
                return await self._worker.files.task(lease.body)
        except (ValueError, OSError) as error:
            raise InfraFailure(f"task: {error}") from error

    async def _solutions(self, lease: Lease) -> list[Solution | None]:
        """The reference solution of each step, which the lease does not carry."""
        read = partial(whole_task, rollout_id=lease.rollout_id)
        task = await self._worker.files.task(await transact(self._worker.engine, read, at="worker.read"))
        return [self._solution(step.task, lease.scaffold) for step in steps_of(task)]

    def _solution(self, task: Task, scaffold: str) -> Solution:
        if task.solution is None:
            raise InfraFailure(f"task: it has no {SOLUTION}, which {scaffold} runs")
        options = shell_options(task.files[SOLUTION].data)
        return Solution(
            files=(placed := task.solution_bundle).files,
            links=placed.links,
            modes=placed.directories,
            argv=("bash", *options, f"/{SOLUTION}"),
            env=task.settings.solution.env,
        )

    def _environment(self, task: Task) -> Environment:
        try:
            return environment_of(task, self._worker)
        except ValueError as error:  # accepted under another configuration, or by another runner's provider
            raise InfraFailure(f"task: {error}") from error

    def _limits(self, lease: Lease, task: Task, scaffold: Scaffold) -> AgentLimits:
        config, agent_settings = self._worker.config, task.settings.agent
        timeout_s = self._timeout_s(task, scaffold)
        stage = config.stage.all[lease.stage]
        turns = agent_settings.max_turns or stage.turns(lease.domain)
        limits = AgentLimits(
            turns=turns,
            context=stage.context(lease.domain),
            tool_timeout_s=config.rollout.tool_timeout_s,
            timeout_s=timeout_s,
            observation_characters=config.rollout.observation_characters,
            observation_lines=config.rollout.observation_lines,
        )
        return self._of_step(limits, timeout_s)

    def _of_step(self, limits: AgentLimits, timeout_s: float) -> AgentLimits:
        """The limits of a step with its own time: no command needs more."""
        tool_s = min(self._worker.config.rollout.tool_timeout_s, timeout_s + 5)
        return replace(limits, timeout_s=timeout_s, tool_timeout_s=tool_s)

    def _timeout_s(self, task: Task, scaffold: Scaffold) -> float:
        timeout_s = task.settings.agent.timeout_sec
        return min(timeout_s, self._worker.config.rollout.timeout_s, scaffold.manifest.timeout_s or timeout_s)

    async def _open_session(
        self, record: AttemptRecord, lease: Lease, task: Task, scaffold: Scaffold, limits: AgentLimits
    ) -> OpenSession:
        """Open the attempt's session and note that it is open. Raises GatewayDrains: the attempt did not start."""
        current().busy(f"the session of rollout {lease.rollout_id}", on="gateway")
        try:
            with phase(SlotPhase.SESSION):
                session = await self._session(record.gateway.admin, lease, task, scaffold, limits)
        except GatewayDrains:
            record.gateway.draining = True
            raise
        record.opened = True
        return session

    async def _session(
        self, admin: GatewayAdmin, lease: Lease, task: Task, scaffold: Scaffold, limits: AgentLimits
    ) -> OpenSession:
        try:
            with known_secret():
                return await admin.open_session(
                    run=self._worker.run,
                    rollout=lease.rollout_id,
                    attempt=lease.attempt,
                    epoch=lease.epoch,
                    budget=SessionBudget(
                        max_turns=limits.turns,
                        max_context=limits.context,
                        max_auxiliary_calls=self._worker.config.rollout.auxiliary_calls,
                        max_auxiliary_tokens=self._worker.config.rollout.auxiliary_tokens,
                    ),
                    sampling=sampling_of(lease),
                    scripted=script_of(task) if lease.purpose == Purpose.RECORD else None,
                    auxiliary=scaffold.manifest.auxiliary,
                    replayable=scaffold.manifest.replayable,
                    version=lease.pinned_version,
                    group=lease.group_id,
                    conversations=scaffold.manifest.conversations,
                    sub_agents=scaffold.manifest.sub_agents
                    if scaffold.manifest.kind == ScaffoldKind.BLACK
                    else None,
                    instructions=[step.task.instruction for step in steps_of(task)[1:]],
                )
        except GatewayRefused as error:
            raise InfraFailure(f"gateway: {error}") from error

    async def _seal(
        self, lease: Lease, outcome: AttemptOutcome, record: AttemptRecord
    ) -> tuple[AttemptOutcome, Seal | None]:
        """End the session, and check the program's report against the gateway's view."""
        if not record.opened:
            return outcome, None
        current().busy(f"the seal of rollout {lease.rollout_id}", on="gateway")
        try:
            seal = await record.gateway.admin.seal(**key_of(lease))
        except PenstockError as error:
            log.warning("session.unsealed", error=str(error))
            if outcome.infra:
                return outcome, None
            reason = f"gateway: not sealed: {error}"
            return AttemptOutcome(
                failure=FailureClass.INFRA_FAILURE, reason=reason, log=outcome.log, resumable=True
            ), None
        if record.clocks is not None:
            record.clocks.replayed(seal.replayed_s)
            if record.scaffold is not None and record.scaffold.manifest.kind == ScaffoldKind.BLACK:
                record.clocks.sealed(seal)
        return replayed(judged(outcome, seal, record.clocks), seal), seal

    async def _close(self, lease: Lease, record: AttemptRecord) -> None:
        """Close the session of an attempt that reports nothing. Best effort: it expires by itself."""
        if not record.opened:
            return
        try:
            with anyio.move_on_after(timeouts().gateway_close_s):
                await record.gateway.admin.abort(**key_of(lease))
        except PenstockError as error:
            log.info("session.left_open", error=str(error))

    async def _held(self, admin: GatewayAdmin, lease: Lease) -> float:
        """Seconds for which the gateway has held the attempt's completions in flight; 0 if it does not answer."""
        with anyio.move_on_after(timeouts().gateway_held_s):
            try:
                return (await admin.activity(**key_of(lease))).held_s
            except PenstockError as error:
                log.info("gateway.silent", error=str(error))
        return 0.0

    async def _cut_off(self, admin: GatewayAdmin, lease: Lease) -> None:
        """Have the gateway record the replies under way. If it does not answer in time, they stay without a record."""
        with anyio.move_on_after(timeouts().cut_off_s):
            try:
                await admin.cut_off(**key_of(lease))
            except PenstockError as error:
                log.warning("session.not_cut_off", error=str(error))

    async def _count(self, counter: str) -> None:
        async def add(connection: AsyncConnection) -> None:
            await transitions.count(connection, self._worker.run_id, counter)

        await transact(self._worker.engine, add, at="worker.count")


def _check_possible(lease: Lease, task: Task, scaffold: Scaffold) -> None:
    """Raise InfraFailure if this scaffold cannot do this task for this purpose."""
    if not scaffold.manifest.trains and lease.purpose != Purpose.EVAL:
        raise InfraFailure(f"scaffold: rollouts of {lease.scaffold} are only evaluated")
    for problem in refusals(task.settings.environment, scaffold.manifest):
        raise InfraFailure(f"task: {problem}")


def _spec_of_program(
    black: BlackBox,
    environment: Environment,
    limits: Limits,
    first: AgentStep,
    session: OpenSession,
    gateway: KnownGateway,
) -> SandboxSpec:
    """The sandbox of an agent that is a program: with its files, and with the gateway, which it calls from inside."""
    placed = black.files(first.view, endpoint_of(session), first.limits)
    return replace(
        environment.spec({**environment.files, **placed}, limits),
        binds=black.binds(),
        gateway_socket=gateway.socket,
        gateway_address=_address(gateway),
    )


async def _prepare(sandbox: Sandbox, lease: Lease, task: Task, scaffold: Scaffold) -> None:
    """Make the open sandbox ready for the agent: its skills are there, and the task's health check passes."""
    skills = skills_dir(task.settings.environment)
    if skills and scaffold.manifest.skills:
        await copy_skills(sandbox, skills, scaffold.manifest.skills)
    if (check := task.settings.healthcheck) is not None:
        what = f"the health check of rollout {lease.rollout_id}"
        current().busy(what, on="sandbox", within=check.longest_s)
        await until_healthy(sandbox, check)


@contextmanager
def tolerate_failed_removal(ended: Callable[[], bool]) -> Iterator[None]:
    """Wraps a sandbox: if its removal fails, an attempt that has `ended` is unaffected; the leftovers are removed later."""
    try:
        yield
    except (SandboxError, OSError, ExceptionGroup) as error:
        if not ended():
            raise
        log.warning("sandbox.not_removed", error=str(error))


def sampling_of(lease: Lease) -> dict[str, Any]:
    """A session's deviations from the configured sampling: evaluation is repeatable, and may have its own parameters."""
    if lease.purpose is Purpose.TRAIN:
        return {}
    return {"seed": lease.seed, **lease.sampling}


def script_of(task: Task) -> list[dict[str, Any]] | None:
    """The replies that replace the policy in a recording, None to record the policy itself."""
    if SCRIPT not in task.files:
        return None
    try:
        replies = json.loads(task.files[SCRIPT].data)
    except ValueError as error:
        raise InfraFailure(f"{SCRIPT}: {error}") from error
    if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
        raise InfraFailure(f"{SCRIPT} must be a list of assistant messages")
    return replies


def _address(gateway: KnownGateway) -> str | None:
    """host:port at which sandboxes on other machines reach the gateway; None for a gateway on this machine."""
    address = gateway.place() if gateway.remote else None
    return None if address is None else f"{address[0]}:{address[1]}"
