"""The preparation of an agent's sandbox for a step of a task with several: its files, its setup.sh, its health check."""

from collections.abc import Mapping

from orchestrator.contracts.errors import InfraFailure
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.runtime.liveness import current
from orchestrator.tasks.multi_step import SETUP, TaskStep
from sandboxes.base import AnyFile, Sandbox

TAIL_BYTES = 300


async def prepare(
    sandbox: Sandbox,
    step: TaskStep,
    work_dir: str,
    timeout_s: float,
    also: Mapping[str, AnyFile] | None = None,
) -> None:
    """Begin a step. `timeout_s`: of its setup.sh; `also`: more files, by absolute path. InfraFailure when the script or the health check fails,
    PathRefused when a file cannot be placed."""
    placed = step.placed.below_root(work_dir)
    files = {**placed.files, **(also or {})}
    if files or placed.links or placed.directories:
        await sandbox.put(files, links=placed.links, modes=placed.directories)
    if step.has_setup:
        current().busy(f"{step.label}{SETUP}", on="sandbox", within=timeout_s)
        result = await sandbox.exec(["bash", sandbox.path(f"{work_dir}/{SETUP}")], timeout_s=timeout_s)
        if not result.ok:
            tail = result.stderr[-TAIL_BYTES:].decode(errors="replace").strip()
            raise InfraFailure(f"task: its {SETUP} ended with exit code {result.exit_code}: {tail}")
    if (check := step.healthcheck) is not None:
        current().busy(f"{step.label}its health check", on="sandbox", within=check.longest_s)
        await until_healthy(sandbox, check)
