"""An owner that is going to be killed: `python -m sandboxes.conformance.victim MODULE:CLASS SCRIPT`.

Opens a sandbox, starts the script in it, says `ready` and waits.
"""

from __future__ import annotations

import sys

import anyio

from sandboxes.base import SandboxSpec
from sandboxes.conformance.load import load


async def run(reference: str, script: str) -> None:
    async with load(reference).open(SandboxSpec()) as sandbox:
        process = await sandbox.start(["sh", "-c", f"{script}; sleep 0.2; echo ready; sleep 600"])
        print((await process.read())[0].decode(), end="", flush=True)
        await process.wait()


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], sys.argv[2])
