"""The observation of a command that ran in a sandbox, for white boxes."""

from sandboxes.base import ExecResult, KilledBy
from scaffolds.base import AgentLimits
from scaffolds.observation import observe


def seen(result: ExecResult, limits: AgentLimits) -> str:
    """The policy's view of one command, as long as the run allows (`scaffolds.observation.observe`). It names the limit that killed the command."""
    return observe(
        result.stdout,
        result.stderr,
        result.exit_code,
        killed=_killed(result.killed_by, limits),
        truncated=result.truncated,
        characters=limits.observation_characters,
        lines=limits.observation_lines,
    )


def _killed(by: KilledBy, limits: AgentLimits) -> str:
    match by:
        case KilledBy.NONE:
            return ""
        case KilledBy.TIMEOUT:
            return f"killed after {limits.tool_timeout_s:g} s"
        case KilledBy.CALLER:
            return "killed"
    return f"killed at the limit of {by.value}"
