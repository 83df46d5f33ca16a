"""What sandboxes of killed workers leave on this machine. Their processes end with their worker, by the kernel; directories and control groups stay.

| produces | waits for | unblocked by |
|---|---|---|
| a machine without sandboxes of dead owners, those of other workers too | one time to live | time |
"""

import anyio
import anyio.to_thread

from orchestrator.log import get
from sandboxes.reap import Reaped, default_root, reap

log = get(__name__)


async def tidy(every_s: float) -> None:
    """Tidy up until cancelled: a worker that dies and never starts again leaves nothing for longer than this."""
    while True:
        await anyio.sleep(every_s)
        try:
            found = await anyio.to_thread.run_sync(reap, default_root())
        except OSError as error:
            found = Reaped(0, 0, (str(error),))
        if found.sandboxes:
            log.info("sandboxes.reaped", sandboxes=found.sandboxes, processes=found.processes)
        for failure in found.failures:
            # Tried again. What is still there a time to live after its owner's death is a violation in every audit on this machine.
            log.warning("sandboxes.left", error=failure)
