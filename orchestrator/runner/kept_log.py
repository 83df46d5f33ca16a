"""The log of an ended program that is kept with its attempt or verdict."""

from scaffolds.observation import DROPPED

from orchestrator.contracts.limits import MAX_KEPT_LOG
from sandboxes.base import ExecResult


def kept_log(ended: ExecResult) -> str:
    """The end of both outputs, at most MAX_KEPT_LOG characters. A line after an output says that the sandbox dropped its true end."""
    stderr_cut = ended.truncated and len(ended.stderr) >= len(ended.stdout)
    stdout, stderr = (
        output[-MAX_KEPT_LOG:].decode(errors="replace") for output in (ended.stdout, ended.stderr)
    )
    if ended.stdout_cut:
        stdout += f"\n{DROPPED}"
        stdout += "\n" if stderr else ""
    if stderr_cut:
        stderr += f"\n{DROPPED}"
    return (stdout + stderr)[-MAX_KEPT_LOG:]
