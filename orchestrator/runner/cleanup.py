"""Removes the leftovers on this machine: sandboxes of killed workers, and gateway sockets of killed supervisors. The kernel ends their processes;
directories and control groups remain.

| produces | waits for | unblocked by |
|---|---|---|
| a machine without sandboxes of dead owners, including those of other workers | one time to live | time |
"""

import anyio.to_thread

from orchestrator.runtime.liveness import current, pause
from orchestrator.runtime.log import get
from sandboxes.base import Provider, SandboxError
from sandboxes.owned import sockets_root
from sandboxes.reap import Reaped, default_root, reap

log = get(__name__)


async def remove_leftovers(every_s: float, provider: Provider | None = None) -> None:
    """Remove leftovers until cancelled: those of a worker that dies and never starts again last no longer than this. `provider` removes
    those that are not in a directory of this machine."""
    while True:
        await pause(every_s)
        current().busy("what dead owners left elsewhere", on="sandbox")
        if (elsewhere := getattr(provider, "remove_leftovers", None)) is not None:
            try:
                if removed := await elsewhere():
                    log.info("sandboxes.reaped", sandboxes=removed)
            except (SandboxError, ValueError) as error:
                log.warning("sandboxes.left", error=str(error))
        for root in (default_root(), sockets_root()):
            current().busy(f"what dead owners left in {root}", on="disk")
            try:
                found = await anyio.to_thread.run_sync(reap, root)
            except OSError as error:
                found = Reaped(0, 0, (str(error),))
            if found.sandboxes:
                log.info(
                    "sandboxes.reaped", root=str(root), sandboxes=found.sandboxes, processes=found.processes
                )
            for failure in found.failures:
                # Retried. Leftovers one time to live after their owner's death are a violation in every audit on this machine.
                log.warning("sandboxes.left", error=failure)
