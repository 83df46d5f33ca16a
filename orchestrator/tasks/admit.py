"""Whether a run can take a task: asked before it is published, and before it is accepted; never of a task that was accepted before."""

from orchestrator import plugins
from orchestrator.config import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.settings import check_spelling
from sandboxes.base import Provider


def check_admissible(task: Task, sandbox: SandboxSection) -> None:
    """ValueError, one sentence, names the task and the misspelt key of its settings, or the line of its Dockerfile that asks for more than the
    run's sandboxes have."""
    provider: type[Provider] = plugins.load("sandboxes", sandbox.provider)
    try:
        check_spelling(task.files["task.toml"].decode())
        task.environment(sandbox.base_images, containers=provider.containers)
    except ValueError as error:
        raise ValueError(f"task {task.name}: {error}") from error
