"""The log of an ended program that is kept with its attempt or verdict."""

from orchestrator.contracts.limits import MAX_KEPT_LOG
from sandboxes.base import ExecResult

DROPPED = "\n[more was printed, and dropped]"


def kept_log(ended: ExecResult) -> str:
    """The end of both outputs, at most MAX_KEPT_LOG characters. A last line says that a sandbox dropped the true end."""
    text = (ended.stdout[-MAX_KEPT_LOG:] + ended.stderr[-MAX_KEPT_LOG:]).decode(errors="replace")
    if not ended.truncated:
        return text[-MAX_KEPT_LOG:]
    return text[len(DROPPED) - MAX_KEPT_LOG :] + DROPPED
