"""The verifier runner: grades a finished attempt in a sandbox that the agent has never seen.

    lease → pristine environment + declared artifacts + tests + answer, in a fresh sandbox → tests/test.sh → reward file → VerdictReached

A task with several steps is graded step by step, each in a sandbox of its own; `multi_step.together` makes the reward.

| produces | waits for | unblocked by |
|---|---|---|
| VerdictReached in the journal | work.verify.*, a slot | complete rollouts, the end of other verifications |

Only the reward file (reward.txt or reward.json) sets the reward; the script's exit code is recorded with it. A missing or unreadable reward
file, a script ended by a signal, a time-out, a reached limit or a failing sandbox is a `verifier_failure` (`NoVerdict` has all causes). It is
retried with the same draws, and is not a reward of 0, with two exceptions. If a program of the agent's used up the limit, that is an answer
(`runner.verification_limits`). In the last try (`roles.retry_policy`), reward 0 is given if programs of the agent's ran, or if the same tests
reach a verdict on the pristine environment: then the agent's files made the tests or their sandbox hang or break. While the sandboxes' disk is
full, no verification starts that could fail (runner.assignments). Programs of the agent's that ran do not count where a signal, or a limit of
memory or disk, ends the script over the pristine environment, too: then the verifier dies by itself.
"""

import time
from dataclasses import replace
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.errors import ServiceError
from orchestrator.contracts.events import ArtifactFile, VerdictReached, VerifyAssigned, encode
from orchestrator.contracts.limits import MAX_KEPT_LOG, MAX_REASON
from orchestrator.contracts.no_verdict import NoVerdict
from orchestrator.contracts.quote import cut_to
from orchestrator.contracts.states import FailureClass
from orchestrator.pool.leases import Lease
from orchestrator.pool.results import artifacts_of, ungradable_of
from orchestrator.pool.sanitize import clean
from orchestrator.pool.settled import MessageKey, MessageKind
from orchestrator.pool.transact import transact
from orchestrator.runner.assignments import Assignments
from orchestrator.runner.grade import MAX_TESTS, Grade, GradedWork, why_failed
from orchestrator.runner.metrics import WorkerMetrics
from orchestrator.runner.outcome import OURS, leaves, root_cause
from orchestrator.runner.step_grades import grade_step, work_of
from orchestrator.runner.verification_limits import seed
from orchestrator.runner.worker import Worker, WorkerSettings, environment_of, open_worker
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.key_values import REWARD
from orchestrator.tasks.multi_step import TaskStep, joined, missed, of_step, steps_of, together
from sandboxes.base import (
    ImageRefused,
    KilledBy,
    MachineFault,
    PathRefused,
    SandboxError,
    SandboxFull,
    SandboxLost,
)
from sandboxes.owner import WorkKind

log = get(__name__)
_OWN_LIMITS: Final = (KilledBy.MEMORY, KilledBy.DISK)
"""Tests that wait for the agent's program reach the other limits if it never comes."""


def died(found: Grade) -> bool:
    """Whether the script was ended by what the agent's programs cannot cause by their absence."""
    return found.cause is NoVerdict.SIGNAL or (
        found.cause is NoVerdict.LIMIT and found.killed_by in _OWN_LIMITS
    )


async def serve_verifications(settings: WorkerSettings) -> None:
    """Verify until cancelled. Raises ServiceError, ConfigurationError or BusError when it cannot start."""
    async with open_worker(settings, "penstock-verifier") as worker:
        log.info("verifier.ready", owner=worker.owner, slots=worker.slots)
        await Assignments(worker, VerifyAssigned, VerifyRunner(worker).verify).serve(
            [
                subjects.consume_work_verify(worker.run, pool)
                for pool in (subjects.POOL_DEFAULT, subjects.POOL_EVAL)
            ]
        )


class VerifyRunner:
    """Grades attempts, any number concurrently."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def verify(self, lease: Lease) -> Outgoing:
        """Reach a verdict, or report why there is none. Ends otherwise only by cancellation (a lost lease) or SandboxFull (it did not start)."""

        async def read(connection: AsyncConnection) -> tuple[str | None, list[ArtifactFile], str | None]:
            key = lease.rollout_id, lease.attempt
            return *await artifacts_of(connection, *key), await ungradable_of(connection, *key)

        answer, artifacts, ungradable = await transact(self._worker.engine, read, at="worker.read")
        started_at = time.monotonic()
        verdict = VerdictReached(
            run=self._worker.run,
            rollout=lease.rollout_id,
            attempt=lease.attempt,
            epoch=lease.epoch,
            failure_class=FailureClass.VERIFIER_FAILURE,
            reward=None,
        )
        try:
            # Never better than a wrong answer, even if the tests would reward missing work.
            if ungradable is not None:
                verdict = _with(
                    verdict,
                    failure_class=FailureClass.COMPLETED,
                    reward=0.0,
                    reason=ungradable,
                    log=f"nothing to grade: {ungradable}",
                )
            else:
                verdict = await self._graded(
                    verdict, await self._worker.files.task(lease.body), answer or "", artifacts
                )
        except SandboxFull:
            raise
        except (SandboxError, PathRefused, ValueError, OSError) as error:
            verdict = _with(verdict, reason=why(error))
        except ServiceError:
            raise
        except Exception as error:  # noqa: BLE001  # counted and logged: one rollout can end only its own verification
            _log_unforeseen(error)
            verdict = _with(verdict, reason=why(error))
        verdict = _sendable(_with(verdict, verify_s=time.monotonic() - started_at))
        log.info("verdict", failure=verdict.failure_class, reward=verdict.reward, reason=verdict.reason)
        return Outgoing(
            subject=subjects.results_verdict(self._worker.run),
            msg_id=str(
                MessageKey(rollout_id=lease.rollout_id, epoch=lease.epoch, idx=0, kind=MessageKind.VERDICT)
            ),
            schema=VerdictReached.schema(),
            body=encode(verdict),
        )

    async def _graded(
        self, verdict: VerdictReached, task: Task, answer: str, artifacts: list[ArtifactFile]
    ) -> VerdictReached:
        steps = steps_of(task)
        if not task.is_multi_step:
            return await self._graded_step(verdict, steps[0], answer, artifacts)
        graded: list[tuple[TaskStep, VerdictReached]] = []
        numbers: list[dict[str, float]] = []
        for step in steps:
            left = of_step(artifacts, step.number)
            if left is None:  # it did not run: the agent ended the attempt before
                numbers.append({})
                continue
            found = await self._graded_step(verdict, step, *left)
            graded.append((step, found))
            if found.reward is None:  # programs of other steps ran in other sandboxes
                return _with(self._of_steps(graded), programs=found.programs)
            numbers.append(dict(found.components or {REWARD: found.reward}))
            if missed(step, numbers[-1]):
                break
        whole = self._of_steps(graded) if graded else verdict
        try:
            scores = together(task, numbers)
        except ValueError as error:
            return _with(
                whole,
                failure_class=FailureClass.VERIFIER_FAILURE,
                reward=None,
                reason=NoVerdict.STEPS.of(error),
            )
        return _with(
            whole,
            failure_class=FailureClass.COMPLETED,
            reward=scores.reward,
            components=scores.components,
        )

    def _of_steps(self, graded: list[tuple[TaskStep, VerdictReached]]) -> VerdictReached:
        """The verdict of the last graded step, with tests, process, logs and programs of all."""
        reasons = [f"{step.label}{found.reason}" for step, found in graded if found.reason is not None]
        tests = [
            msgspec.structs.replace(test, name=f"{step.name}/{test.name}")
            for step, found in graded
            for test in found.tests
        ]
        process, notes = joined([(step.name or "", found.process) for step, found in graded])
        noted = cut_to("".join(f"note: {note}\n" for note in notes), MAX_KEPT_LOG // 4)
        share = MAX_KEPT_LOG // len(graded)
        return _with(
            graded[-1][1],
            reason=reasons[-1] if reasons else None,
            tests=tests[:MAX_TESTS],
            process=process,
            log=(noted + "\n".join(f"{step.label}{found.log}"[:share] for step, found in graded))[
                :MAX_KEPT_LOG
            ],
            programs=sum(found.programs for _, found in graded),
        )

    async def _graded_step(
        self, verdict: VerdictReached, step: TaskStep, answer: str, artifacts: list[ArtifactFile]
    ) -> VerdictReached:
        environment = environment_of(step.task, self._worker)
        work = work_of(step, answer, artifacts, environment, await self._worker.files.left(artifacts))
        drawn = seed(verdict.run, verdict.rollout, verdict.attempt, work.tests)
        what = f"the tests of rollout {verdict.rollout}"
        try:
            found = await grade_step(self._worker, step, work, drawn, what)
        except Exception as error:  # noqa: BLE001 - those that the agent's files may have caused: they cannot be placed, or use up or break the sandbox
            cause = _unless_platforms(error)
            left = await self._is_why(step, work, drawn)
            if not left or _repeats(cause):
                return _with(verdict, reason=why(cause), left=left)
            # The machine may have failed just once, before the tests ran over nothing.
            try:
                found = await grade_step(self._worker, step, work, drawn, what)
            except Exception as again:  # noqa: BLE001 - the same ones
                return _with(verdict, reason=why(_unless_platforms(again)), left=True)
        verdict = _with(verdict, exit_code=found.exit_code, log=found.log, programs=found.programs)
        if found.reward is None:
            if found.programs and died(found) and await self._die_alike(step, work, drawn):
                return _with(verdict, reason=found.reason, programs=0)  # they are not why
            left = not found.programs and await self._is_why(step, work, drawn)
            return _with(verdict, reason=found.reason, left=left)
        return _with(
            verdict,
            failure_class=FailureClass.COMPLETED,
            reward=found.reward,
            reason=found.reason,
            tests=list(found.tests),
            process=found.process,
            components=found.components,
        )

    async def _is_why(self, step: TaskStep, work: GradedWork, drawn: int) -> bool:
        """Whether the tests reach a verdict without answer and artifacts: then the agent's work is why they reached none."""
        if not (work.answer or work.artifacts):
            return False
        found = await self._over_nothing(step, work, drawn)
        return found is not None and found.reward is not None

    async def _die_alike(self, step: TaskStep, work: GradedWork, drawn: int) -> bool:
        """Whether the script is ended without answer and artifacts, too: then the agent's programs are not why. A script that only writes no reward
        over nothing says nothing about them."""
        found = await self._over_nothing(step, work, drawn)
        return found is not None and died(found)

    async def _over_nothing(self, step: TaskStep, work: GradedWork, drawn: int) -> Grade | None:
        """The result of the tests without answer and artifacts; None if they cannot run."""
        nothing = replace(work, answer="", artifacts=())
        try:
            return await grade_step(self._worker, step, nothing, drawn, "the tests over nothing")
        except Exception as error:  # noqa: BLE001 - then nothing is known about the agent's work
            for leaf in leaves(error):
                if isinstance(leaf, (SandboxFull, ServiceError)):
                    raise leaf from None
            _log_unforeseen(root_cause(error))
            log.info("verdict.control_failed", error=str(error))
            return None


def _unless_platforms(error: Exception) -> Exception:
    """The error that says why a verification failed, logged if it is unforeseen. Raises one that no file and no program of an agent can cause."""
    for leaf in leaves(error):
        machine = isinstance(leaf, OSError) and leaf.errno in OURS
        if machine or isinstance(leaf, (SandboxFull, SandboxLost, MachineFault, ServiceError)):
            raise leaf from None
    cause = root_cause(error)
    _log_unforeseen(cause)
    return cause


def _repeats(cause: Exception) -> bool:
    """Whether an error lies in what was given, so that another run over the same meets it again."""
    return isinstance(cause, (PathRefused, ValueError)) and not isinstance(cause, ImageRefused)


def _log_unforeseen(error: Exception) -> None:
    """Count and log an error for which no cause but our own code is known."""
    if cause_of(error) is NoVerdict.OURS:
        measured(WorkerMetrics).errors.labels(WorkKind.VERIFICATION).inc()
        log.error("verifier.error", exc_info=error)


def cause_of(error: Exception) -> NoVerdict:
    """The cause of a verification that an exception ended."""
    match error:
        case SandboxError():
            return why_failed(error)
        case OSError():
            return NoVerdict.MACHINE
        case PathRefused() | ValueError():
            return NoVerdict.REFUSED
    return NoVerdict.OURS


def why(error: Exception) -> str:
    """The reason of a verification that an exception ended."""
    cause = cause_of(error)
    return cause.of(f"{type(error).__name__}: {error}" if cause is NoVerdict.OURS else error)


def _with(verdict: VerdictReached, **changes: object) -> VerdictReached:
    return msgspec.structs.replace(verdict, **changes)


def _sendable(verdict: VerdictReached) -> VerdictReached:
    """A verdict whose texts its reader takes: an error may quote names of the agent's, of any bytes and length."""
    reason = None if verdict.reason is None else cut_to(clean(verdict.reason), MAX_REASON)
    return _with(verdict, reason=reason, log=clean(verdict.log)[:MAX_KEPT_LOG])
