"""The work of an attempt in its sandbox: its steps one after the other, each with the agent's run and with what it leaves for its tests.

    workdir/ and setup.sh of the step → agent → changed files → where the step has a `min_reward`: its tests, in a sandbox of their own

An ordinary task is one step. After an end that the policy caused the next step begins, as in Harbor: its own time has not been used. The verdict on
steps is the verifier's; the tests that run here only decide whether the attempt goes on. The time between two runs of the agent is not the agent's,
but for that of collect hooks, in which what it left running can work.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scaffolds.base import AgentLimits, BlackBox, Scaffold, TaskView

from orchestrator.contracts.errors import InfraFailure, ServiceError
from orchestrator.contracts.events import ArtifactFile, ToolCallTimed
from orchestrator.contracts.states import FailureClass, SlotPhase
from orchestrator.gateway_client import NativeLlm, OpenSession
from orchestrator.pool.leases import Lease
from orchestrator.runner.attempt_result import key_of
from orchestrator.runner.blackbox import Sight, endpoint_of, run_black, witnessed
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.collect import artifacts_of
from orchestrator.runner.context_policies import policy_of
from orchestrator.runner.gateways import KnownGateway
from orchestrator.runner.metrics import WorkerMetrics
from orchestrator.runner.outcome import AttemptOutcome, captured, leaves, root_cause
from orchestrator.runner.prepare import prepare
from orchestrator.runner.redact import redacted
from orchestrator.runner.step_grades import grade_step, numbers_of, work_of
from orchestrator.runner.verification_limits import seed
from orchestrator.runner.whitebox import run_white
from orchestrator.runner.worker import Worker
from orchestrator.runtime.liveness import current
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured
from orchestrator.runtime.phase_timer import phase
from orchestrator.tasks.artifacts import answer_of_output, limits_of, too_much_together
from orchestrator.tasks.collected import with_convention
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.multi_step import TaskStep, as_step, missed
from orchestrator.trajectory.waiting import Served
from sandboxes.base import ArtifactLimits, PathRefused, Sandbox, SandboxError
from sandboxes.owner import WorkKind

log = get(__name__)


@dataclass(frozen=True, slots=True)
class AgentStep:
    """A step, as its agent sees it, and the limits of its agent."""

    step: TaskStep
    view: TaskView
    limits: AgentLimits


@dataclass(slots=True, kw_only=True)
class AttemptWork:
    """One attempt in its open sandbox. `pristine`: the task's environment; appends to `tool_calls` and `artifacts`; `between_s`: seconds between
    two runs of the agent."""

    worker: Worker
    lease: Lease
    gateway: KnownGateway
    session: OpenSession
    scaffold: Scaffold
    sandbox: Sandbox
    pristine: Environment
    clocks: Clocks
    tool_calls: list[ToolCallTimed]
    artifacts: list[ArtifactFile]
    between_s: float = 0.0
    _served: Served = field(default_factory=Served)

    @property
    def limits(self) -> ArtifactLimits:
        return limits_of(self.worker.config.sandbox)

    async def run(self, agent_steps: Sequence[AgentStep], black: BlackBox | None) -> AttemptOutcome:
        """All steps, up to the one that ends the attempt. `black`: the black box whose files for the first step are in place. The outcome of the
        first step that did not complete, if there is one."""
        first: AttemptOutcome | None = None
        last: AttemptOutcome | None = None
        for each in agent_steps:
            started = time.monotonic()
            unready = await self._unready(each, black if each.step.number else None)
            self.between_s += time.monotonic() - started
            if unready is not None:
                return unready if unready.infra or first is None else first
            last = await self._step(each, black)
            if each.step.name is not None and last.reason is not None:
                last = replace(last, reason=f"{each.step.label}{last.reason}")
            first = first or (last if last.failure is not FailureClass.COMPLETED else None)
            if last.ungradable is not None or (last.infra and not last.reachable):
                return last
            if each is not agent_steps[-1] and await self._ends_after(each.step, last):
                break
        assert last is not None
        return last if first is None else replace(first, answer=last.answer)

    async def _unready(self, agent_step: AgentStep, black: BlackBox | None) -> AttemptOutcome | None:
        """Prepare the sandbox for a step; the outcome if that fails. What the agent has done so far may be why, so it counts as the agent's fault.
        Raises InfraFailure in the first step. `black`: its files are placed again."""
        step = agent_step.step
        files = (
            black.files(agent_step.view, endpoint_of(self.session), agent_step.limits)
            if black is not None
            else {}
        )
        try:
            await prepare(self.sandbox, step, self.pristine.work_dir, agent_step.limits.timeout_s, files)
        except (InfraFailure, PathRefused) as error:
            if step.number == 0:
                raise InfraFailure(str(error)) from error
            return AttemptOutcome(
                failure=FailureClass.POLICY_FAILURE, reason=f"{step.label}it cannot begin: {error}"
            )
        except SandboxError as error:
            return await captured(partial(_failing, error))
        return None

    async def _step(self, agent_step: AgentStep, black: BlackBox | None) -> AttemptOutcome:
        """The agent's run, and what it leaves."""
        task, step = agent_step.step.task, agent_step.step
        current().busy(f"the scaffold of rollout {self.lease.rollout_id}", on="scaffold")
        with phase(SlotPhase.AGENT):
            outcome = redacted(await self._agent(agent_step, black), self.session.token)
        if self.scaffold.manifest.solution and outcome.answer is not None:
            outcome = replace(outcome, answer=answer_of_output(outcome.answer))
        current().busy(f"what rollout {self.lease.rollout_id} changed", on="sandbox")
        with phase(SlotPhase.CHANGES):
            outcome, left = await artifacts_of(
                self.sandbox,
                outcome,
                self.session.token,
                self.limits,
                self.worker.files.keep,
                hooks=task.settings.verifier.collect,
                sources=with_convention(task.settings.artifacts, task.tests_files()),
                clocks=self.clocks,
            )
        if step.name is None:
            self.artifacts += left
        elif outcome.ungradable is None:
            self.artifacts += as_step(step.number, outcome.answer, left)
            if (why := too_much_together(self.artifacts, self.limits)) is not None:
                self.artifacts.clear()
                failure = outcome.failure if outcome.infra else FailureClass.POLICY_FAILURE
                return replace(outcome, failure=failure, reason=why, ungradable=why)
        return outcome

    async def _agent(self, agent_step: AgentStep, black: BlackBox | None) -> AttemptOutcome:
        lease = self.lease
        activity, sight = partial(self.gateway.admin.activity, **key_of(lease)), Sight()

        async def work() -> AttemptOutcome:
            if black is not None:
                return await run_black(
                    black,
                    agent_step.view,
                    self.sandbox,
                    session=self.session,
                    clocks=self.clocks,
                    limits=agent_step.limits,
                    activity=activity,
                    sight=sight,
                    first=agent_step.step.number == 0,
                )
            async with NativeLlm(self.gateway.url, self.session.token) as native:
                context_policy = policy_of(self.worker.config.rollout.context, lease.scaffold)
                return await run_white(
                    self.scaffold,
                    agent_step.view,
                    self.sandbox,
                    native=native,
                    clocks=self.clocks,
                    limits=agent_step.limits,
                    tool_calls=self.tool_calls,
                    context_policy=context_policy,
                    served=self._served,
                )

        outcome = await captured(work)
        own_failure = outcome.failure in (FailureClass.INFRA_FAILURE, FailureClass.TIMEOUT)
        if black is not None and outcome.reachable and own_failure:
            outcome = await captured(partial(witnessed, outcome, sight, activity))
        return outcome

    async def _ends_after(self, step: TaskStep, outcome: AttemptOutcome) -> bool:
        """Whether a step's tests give less than its `min_reward`. Without a verdict the attempt goes on, and the verifier decides."""
        if not step.min_reward:
            return False
        started = time.monotonic()
        tests = step.task.tests_files()
        drawn = seed(self.worker.run, self.lease.rollout_id, self.lease.attempt, tests)
        left = [file for file in self.artifacts if file.step == step.number]
        what = f"the tests of a step of rollout {self.lease.rollout_id}"
        try:
            stored = await self.worker.files.left(left)
            work = work_of(step, outcome.answer or "", left, self.pristine, stored)
            found = await grade_step(self.worker, step, work, drawn, what)
        except Exception as error:
            # The files of the agent may cause it, and another try of the attempt would be a reroll.
            for leaf in leaves(error):
                if isinstance(leaf, ServiceError):
                    raise leaf from None
            cause = root_cause(error)
            if not isinstance(cause, (PathRefused, ValueError, OSError, SandboxError)):
                measured(WorkerMetrics).errors.labels(WorkKind.ATTEMPT).inc()
                log.error("step.error", step=step.name, exc_info=error)
            log.warning("step.not_graded", step=step.name, error=f"{type(cause).__name__}: {cause}")
            return False
        finally:
            self.between_s += time.monotonic() - started
        if found.reward is None:
            log.warning("step.not_graded", step=step.name, error=found.reason)
            return False
        return missed(step, numbers_of(found))


async def _failing(error: SandboxError) -> AttemptOutcome:
    raise error
