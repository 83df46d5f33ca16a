"""What sandboxes of killed workers, and gateways of killed supervisors, leave on this machine. Their processes end with them, by the kernel;
directories and control groups stay.

| produces | waits for | unblocked by |
|---|---|---|
| a machine without sandboxes of dead owners, those of other workers too | one time to live | time |
"""

import anyio.to_thread

from orchestrator.log import get
from orchestrator.progress import current, pause
from sandboxes.base import Provider, SandboxError
from sandboxes.owned import sockets_root
from sandboxes.reap import Reaped, default_root, reap

log = get(__name__)


async def tidy(every_s: float, provider: Provider | None = None) -> None:
    """Tidy up until cancelled: a worker that dies and never starts again leaves nothing for longer than this. What is not on this machine,
    `provider` knows."""
    while True:
        await pause(every_s)
        current().works("what dead owners left elsewhere", on="sandbox")
        if (elsewhere := getattr(provider, "tidy", None)) is not None:
            try:
                if removed := await elsewhere():
                    log.info("sandboxes.reaped", sandboxes=removed)
            except (SandboxError, ValueError) as error:
                log.warning("sandboxes.left", error=str(error))
        for root in (default_root(), sockets_root()):
            current().works(f"what dead owners left in {root}", on="disk")
            try:
                found = await anyio.to_thread.run_sync(reap, root)
            except OSError as error:
                found = Reaped(0, 0, (str(error),))
            if found.sandboxes:
                log.info(
                    "sandboxes.reaped", root=str(root), sandboxes=found.sandboxes, processes=found.processes
                )
            for failure in found.failures:
                # Tried again. What is still there a time to live after its owner's death is a violation in every audit on this machine.
                log.warning("sandboxes.left", error=failure)
