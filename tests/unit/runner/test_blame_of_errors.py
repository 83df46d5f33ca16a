"""An error in a verification that the agent's files cause at every try is their answer; one of the machine, or from outside, is not."""

import errno
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.contracts.events import ArtifactFile, VerdictReached
from orchestrator.contracts.ids import b64
from orchestrator.contracts.states import FailureClass
from orchestrator.runner.attempt_work import AttemptWork
from orchestrator.runner.outcome import AttemptOutcome
from orchestrator.runner.verify_runner import VerifyRunner
from orchestrator.runner.worker import Worker, environment_of
from orchestrator.settings.config import Config
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.key_values import REWARD
from orchestrator.tasks.multi_step import steps_of
from sandboxes.base import (
    ImageRefused,
    MachineFault,
    Sandbox,
    SandboxError,
    SandboxFull,
    SandboxLost,
    SandboxSpec,
    SandboxSpent,
)
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

TESTS = "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt\n"


class FailsOver(BubblewrapProvider):
    """Its sandboxes fail with `error` if the work directory holds the file `bomb`, at most `times`."""

    def __init__(self, error: Exception, times: float) -> None:
        super().__init__()
        self._error, self._times = error, times

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if any(path.endswith("bomb") for path in spec.files) and self._times > 0:
            self._times -= 1
            raise self._error
        async with super().open(spec) as sandbox:
            yield sandbox


def task_of(tests: str) -> Task:
    return Task.from_files({"task.toml": b"", "instruction.md": b"x", "tests/test.sh": tests.encode()})


def worker_of(provider: BubblewrapProvider) -> Worker:
    async def left(_: object) -> dict[str, Any]:
        return {}

    config = Config.model_validate({"run": {"name": "a"}})
    files = SimpleNamespace(left=left)
    return cast(Worker, SimpleNamespace(run="a", config=config, provider=provider, files=files))


async def verdict(error: Exception, tests: str = TESTS, times: float = math.inf) -> VerdictReached:
    (step,) = steps_of(task_of(tests))
    worker = worker_of(FailsOver(error, times))
    found = VerdictReached(
        run="a", rollout=1, attempt=1, epoch=1, failure_class=FailureClass.VERIFIER_FAILURE, reward=None
    )
    bomb = ArtifactFile(path="bomb", body=b64(b"x"))
    return await VerifyRunner(worker)._graded_step(found, step, "", [bomb])


AGENTS = [
    SandboxSpent("memory"),
    SandboxError("processes of a sandbox do not die"),
    OSError(errno.ENAMETOOLONG, "File name too long"),
    RecursionError("maximum recursion depth exceeded"),
]


@pytest.mark.parametrize("error", AGENTS, ids=lambda error: type(error).__name__)
async def test_an_error_that_only_the_agents_files_bring_about_is_blamed_on_them(error: Exception) -> None:
    found = await verdict(error)
    assert (found.reward, found.left) == (None, True) and found.reason


@pytest.mark.parametrize(
    "error", [*AGENTS, ExceptionGroup("at the end", AGENTS)], ids=lambda error: type(error).__name__
)
async def test_an_error_in_the_tests_of_a_step_does_not_end_the_attempt(error: Exception) -> None:
    (step,) = steps_of(task_of(TESTS))
    worker = worker_of(FailsOver(error, 1))
    bomb = ArtifactFile(path="bomb", body=b64(b"x"), step=step.number)
    work: Any = SimpleNamespace(
        worker=worker,
        lease=SimpleNamespace(rollout_id=1, attempt=1),
        artifacts=[bomb],
        pristine=environment_of(step.task, worker),
        between_s=0.0,
    )
    done = AttemptOutcome(failure=FailureClass.COMPLETED)
    judged = replace(step, min_reward={REWARD: 0.5})
    assert not await AttemptWork._ends_after(work, judged, done)
    assert await AttemptWork._ends_after(work, judged, done)  # the tests give 0


async def test_an_error_over_nothing_too_is_not_blamed_on_the_agents_files() -> None:
    assert (await verdict(SandboxSpent("memory"), tests="exit 0\n")).left is False


@pytest.mark.parametrize(
    "error",
    [
        SandboxError("docker did not start a container: its daemon restarts"),
        BlockingIOError(errno.EAGAIN, "fork: Resource temporarily unavailable"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        ExceptionGroup("in the background", [ConnectionResetError(errno.ECONNRESET, "Connection reset")]),
        ImageRefused("the base image is not in the store"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_that_the_same_files_do_not_meet_again_costs_nothing(error: Exception) -> None:
    found = await verdict(error, tests=TESTS.replace("echo 0", "echo 1"), times=1)
    assert (found.failure_class, found.reward, found.left) == (FailureClass.COMPLETED, 1.0, False)


@pytest.mark.parametrize(
    "error",
    [
        SandboxLost("killed"),
        MachineFault("cannot start a program: too many open files"),
        SandboxFull("the disk of the sandboxes is full"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
@pytest.mark.parametrize("in_group", [False, True])
async def test_an_error_that_no_agent_can_cause_is_never_blamed_on_its_files(
    error: Exception, in_group: bool
) -> None:
    with pytest.raises(type(error)):
        await verdict(ExceptionGroup("in the background", [RuntimeError(), error]) if in_group else error)
