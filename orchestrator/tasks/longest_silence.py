"""For how long a task's work may go on and record nothing."""

from typing import Any

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.multi_step import steps_of


def longest_s(task: Task) -> float:
    """The most seconds that an attempt or its verification may last without a recorded step: an agent may use up its limits without a completion.

    Builds, health checks, the agents or the tests of all steps; without the platform's waiting.
    """
    steps = steps_of(task)
    settings = task.settings
    checks = [settings.healthcheck, *(step.healthcheck for step in steps)]
    attempt = sum(step.task.settings.agent.timeout_sec for step in steps)
    attempt += sum(check.longest_s for check in checks if check is not None)
    verification = sum(step.task.settings.verifier.timeout_sec for step in steps)
    return max(
        _build_s(settings.environment) + attempt,
        sum(_build_s(step.task.settings.judging) for step in steps) + verification,
    )


def _build_s(environment: dict[str, Any]) -> float:
    """The build's own limit; 0 where the provider's counts."""
    value = environment.get("build_timeout_sec")
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
