"""Whether a run's sandboxes can be what a task's Dockerfile asks for: asked before a task is published, and before it is accepted."""

from orchestrator import plugins
from orchestrator.config import SandboxSection
from orchestrator.tasks.harbor import Task
from sandboxes.base import Provider


def check_environment(task: Task, sandbox: SandboxSection) -> None:
    """ValueError, one sentence, names the task and the line that asks for more than there is."""
    provider: type[Provider] = plugins.load("sandboxes", sandbox.provider)
    try:
        task.environment(sandbox.base_images, containers=provider.containers)
    except ValueError as error:
        raise ValueError(f"task {task.name}: {error}") from error
