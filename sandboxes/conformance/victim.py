"""An owner that the checks kill: `python -m sandboxes.conformance.victim MODULE:CLASS SCRIPT [IMAGE [USER]]`.

Opens a sandbox (on IMAGE, if there is one, as USER), starts the script in it, prints `ready` and waits.
"""

from __future__ import annotations

import sys

import anyio

from sandboxes.base import SandboxSpec
from sandboxes.conformance.load import load


async def run(reference: str, script: str, image: str, user: str) -> None:
    async with load(reference).open(SandboxSpec(image=image, user=user)) as sandbox:
        process = await sandbox.start(["sh", "-c", f"{script}; sleep 0.2; echo ready; sleep 600"])
        print((await process.read())[0].decode(), end="", flush=True)
        await process.wait()


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], sys.argv[2], "".join(sys.argv[3:4]), "".join(sys.argv[4:5]))
