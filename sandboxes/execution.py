"""Running a program to its end: `exec` of a sandbox that has `start`."""

import anyio

from sandboxes.base import ExecResult, Process


async def to_its_end(process: Process) -> ExecResult:
    """The result of the program. Cancelling ends the program first."""
    try:
        return await process.wait()
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await process.kill()
        raise
