"""Grades one step of a task: its tests over what the attempt had left after it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.states import Left
from orchestrator.runner.grade import Grade, GradedWork, grade
from orchestrator.runner.worker import Worker, verification_of
from orchestrator.runtime.liveness import current
from orchestrator.tasks.artifacts import NOTHING
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.key_values import REWARD
from orchestrator.tasks.multi_step import TaskStep
from orchestrator.tasks.network import access, of_tests
from orchestrator.tasks.resources import granted
from orchestrator.tasks.work_dir import begins_in
from sandboxes.base import AnyFile


def work_of(
    step: TaskStep,
    answer: str,
    artifacts: Sequence[ArtifactFile],
    environment: Environment,
    stored: Mapping[str, AnyFile] = NOTHING,
) -> GradedWork:
    """The input of a step's tests. The answer may be among the artifacts. `environment`: the agent's. `stored`: the content of those that lie in
    blobs, by path."""
    task = step.task
    left = [file for file in artifacts if file.kind is not Left.ANSWER]
    seen = task.seen_by_tests(left, environment)
    # Files of a WORKDIR that the tests do not share have another path there.
    if any(file.path not in stored for file in seen if file.parts):
        begins = begins_in(environment)
        stored = {**stored, **{f"{begins}/{path}": file for path, file in stored.items()}}
    return GradedWork(
        answer=answer,
        artifacts=seen,
        stored=stored,
        tests=(tests := task.tests_bundle).files,
        tests_links=tests.links,
        tests_modes=tests.directories,
        env=task.settings.verifier.env,
        performance=task.settings.verifier.performance,
        partial=step.name is not None,
    )


async def grade_step(worker: Worker, step: TaskStep, work: GradedWork, drawn: int, what: str) -> Grade:
    """Run the tests under this worker's provider. Raises as `grade`."""
    settings = step.task.settings
    timeout_s = settings.verifier.timeout_sec
    pristine = verification_of(step.task, worker)
    current().busy(what, on="sandbox", within=timeout_s + pristine.services_s)
    return await grade(
        worker.provider,
        step.over(pristine),
        replace(work, access=access(of_tests(settings), worker.config.sandbox)),
        granted(worker.config.sandbox, settings.judging),
        timeout_s=timeout_s,
        seed=drawn,
    )


def numbers_of(found: Grade) -> dict[str, float]:
    """The named numbers of a verdict; a reward without a name is called `reward`."""
    assert found.reward is not None
    return dict(found.components) if found.components is not None else {REWARD: found.reward}
