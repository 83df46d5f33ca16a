"""The verifier runner: grades a finished attempt in a sandbox that the agent has never seen.

    lease → pristine environment + declared artifacts + tests + answer, in a fresh sandbox → tests/test.sh → reward file → VerdictReached

| produces | waits for | unblocked by |
|---|---|---|
| VerdictReached in the journal | work.verify.*, a slot | complete rollouts, the end of other verifications |

The reward file is the only word on the reward; the script's exit code is recorded beside it. No reward file, an unreadable one, a script that a
signal ended, a time-out, a limit reached or a failing sandbox is a `verifier_failure`, tried again and never a reward of 0. While the disk
of the sandboxes is full there is no verification to fail (flow.assignments).
"""

import time
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.errors import VerifierFailure
from orchestrator.contracts.events import ArtifactFile, VerdictReached, VerifyAssigned, encode
from orchestrator.contracts.states import FailureClass
from orchestrator.flow.assignments import Assignments
from orchestrator.flow.crossing import graded
from orchestrator.flow.measured import sandbox
from orchestrator.flow.outcome import LOG_BYTES
from orchestrator.flow.worker import Worker, WorkerSettings, environment_of, open_worker, sandbox_limits
from orchestrator.log import get
from orchestrator.pool.leases import Lease
from orchestrator.pool.results import artifacts_of
from orchestrator.pool.transact import transact
from orchestrator.progress import current
from orchestrator.tasks import untrusted
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.verdict import (
    ANSWER_VARIABLE,
    LOGS_VARIABLE,
    RESULTS_FILE,
    REWARD_FILE,
    SIGNALLED,
    TESTS_DIR,
    UNTRUSTED_FILE,
    UNTRUSTED_VARIABLE,
    parse_results,
    parse_reward,
)
from sandboxes.base import File, KilledBy, PathRefused, Sandbox, SandboxError, SandboxFull

log = get(__name__)

ANSWER_FILE: Final = "/logs/agent/answer.txt"
"""Where the final message lies for the tests (empty without one); `$PENSTOCK_ANSWER` names it."""
LOGS_DIR: Final = "/logs"
MAX_TESTS: Final = 1000
REWARD_BYTES: Final = 4096
RESULTS_BYTES: Final = 400_000
UNTRUSTED: Final = File(Path(untrusted.__file__).read_bytes())


async def serve_verifications(settings: WorkerSettings) -> None:
    """Verify until cancelled. Raises ServiceError, ConfigurationError or BusError when it cannot begin."""
    async with open_worker(settings, "penstock-verifier") as worker:
        log.info("verifier.ready", owner=worker.owner, slots=worker.slots)
        await Assignments(worker, VerifyAssigned, VerifyRunner(worker).verify).serve(
            [
                subjects.consume_work_verify(worker.run, pool)
                for pool in (subjects.POOL_DEFAULT, subjects.POOL_EVAL)
            ]
        )


class VerifyRunner:
    """Grades attempts, any number at a time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def verify(self, lease: Lease) -> Outgoing:
        """Reach a verdict, or say why there is none; only cancellation (a lost lease) and SandboxFull (it did not begin) end it otherwise."""

        async def read(connection: AsyncConnection) -> tuple[str | None, list[ArtifactFile]]:
            return await artifacts_of(connection, lease.rollout_id, lease.attempt)

        answer, artifacts = await transact(self._worker.engine, read, at="worker.read")
        began = time.monotonic()
        verdict = VerdictReached(
            run=self._worker.run,
            rollout=lease.rollout_id,
            attempt=lease.attempt,
            epoch=lease.epoch,
            failure_class=FailureClass.VERIFIER_FAILURE,
            reward=None,
        )
        try:
            verdict = await self._graded(verdict, Task.from_message(lease.body), answer or "", artifacts)
        except SandboxFull:
            raise
        except (VerifierFailure, SandboxError, PathRefused, ValueError, OSError) as error:
            verdict = _with(verdict, reason=str(error)[:1000])
        verdict = _with(verdict, verify_s=time.monotonic() - began)
        log.info("verdict", failure=verdict.failure_class, reward=verdict.reward, reason=verdict.reason)
        msg_id = f"{lease.rollout_id}:{lease.epoch}:0:verdict"
        return Outgoing(
            subjects.results_verdict(self._worker.run), msg_id, VerdictReached.schema(), encode(verdict)
        )

    async def _graded(
        self, verdict: VerdictReached, task: Task, answer: str, artifacts: list[ArtifactFile]
    ) -> VerdictReached:
        timeout_s = task.settings.verifier.timeout_sec
        environment = graded(environment_of(task, self._worker), artifacts)
        files = dict(environment.files)
        files |= {f"{TESTS_DIR}/{path}": File(body) for path, body in task.tests_files().items()}
        files[UNTRUSTED_FILE] = UNTRUSTED
        files[ANSWER_FILE] = File(answer.encode(errors="replace"))
        limits = sandbox_limits(self._worker.config.sandbox, timeout_s)
        current().works(f"the tests of rollout {verdict.rollout}", on="sandbox", within=timeout_s)
        async with sandbox(self._worker.provider, environment.spec(files, limits)) as box:
            ended = await box.exec(
                ["bash", f"{TESTS_DIR}/test.sh"],
                timeout_s=timeout_s,
                env={
                    ANSWER_VARIABLE: ANSWER_FILE,
                    LOGS_VARIABLE: LOGS_DIR,
                    UNTRUSTED_VARIABLE: UNTRUSTED_FILE,
                },
            )
            said = (ended.stdout[-LOG_BYTES:] + ended.stderr[-LOG_BYTES:]).decode(errors="replace")[
                -LOG_BYTES:
            ]
            verdict = _with(verdict, exit_code=ended.exit_code, log=said)
            if ended.killed_by is not KilledBy.NONE:
                return _with(verdict, reason=f"tests/test.sh was ended: {ended.killed_by.value}")
            if ended.exit_code >= SIGNALLED:
                return _with(
                    verdict, reason=f"tests/test.sh was ended by signal {ended.exit_code - SIGNALLED}"
                )
            try:
                reward = parse_reward(await _text(box, REWARD_FILE, REWARD_BYTES))
                tests = parse_results(await _text(box, RESULTS_FILE, RESULTS_BYTES))
            except (ValueError, PathRefused) as error:
                return _with(verdict, reason=str(error)[:1000])
        return _with(verdict, failure_class=FailureClass.COMPLETED, reward=reward, tests=tests[:MAX_TESTS])


async def _text(box: Sandbox, path: str, max_bytes: int) -> str | None:
    try:
        return (await box.get(path, max_bytes=max_bytes)).decode(errors="replace")
    except FileNotFoundError:
        return None


def _with(verdict: VerdictReached, **changes: object) -> VerdictReached:
    return msgspec.structs.replace(verdict, **changes)
