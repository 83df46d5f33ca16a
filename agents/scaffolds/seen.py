"""The observation of a command that ran in a sandbox, for white boxes."""

from sandboxes.base import ExecResult
from scaffolds.base import AgentLimits
from scaffolds.observation import observe


def seen(result: ExecResult, limits: AgentLimits) -> str:
    """The policy's view of one command, as long as the run allows (`scaffolds.observation.observe`)."""
    return observe(
        result.stdout,
        result.stderr,
        result.exit_code,
        characters=limits.observation_characters,
        lines=limits.observation_lines,
    )
