"""`[environment].healthcheck`: a command that must succeed in the agent's sandbox before the agent starts. Docker's rules.

A sandbox that does not become healthy is a failure of the platform or of the task, never of the policy: the attempt is run again.
"""

import time

import anyio

from orchestrator.contracts.errors import InfraFailure
from orchestrator.tasks.settings import Healthcheck
from sandboxes.base import Sandbox

TAIL_BYTES = 300


async def until_healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """Return when the command has succeeded once. InfraFailure after `retries` failures in a row; those of the start period do not count."""
    start_period_ends = time.monotonic() + check.start_period_sec
    failures = 0
    while True:
        counts = time.monotonic() >= start_period_ends
        result = await sandbox.exec(["bash", "-c", check.command], timeout_s=check.timeout_sec)
        if result.ok:
            return
        failures += counts
        if failures >= check.retries:
            how = (
                f"did not end within {check.timeout_sec:g} s"
                if result.timed_out
                else f"ended with exit code {result.exit_code}"
            )
            tail = (result.stdout + result.stderr)[-TAIL_BYTES:].decode(errors="replace").strip()
            raise InfraFailure(
                f"task: its health check failed {failures} times in a row, the last one {how}{f': {tail}' if tail else ''}"
            )
        await anyio.sleep(check.interval_sec if counts else check.start_interval_sec)
