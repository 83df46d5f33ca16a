"""Every sandbox of a worker is opened here, measured, and given its access to a network."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.contracts.network import Access
from orchestrator.runner.egress.sandbox import NetworkedSandbox, listening
from orchestrator.runner.metrics import WorkerMetrics
from orchestrator.runtime.metrics import measured
from sandboxes.base import Provider, Sandbox, SandboxError, SandboxFull, SandboxSpec


@asynccontextmanager
async def open_sandbox(
    provider: Provider, spec: SandboxSpec, access: Access | None = None
) -> AsyncIterator[Sandbox]:
    """`provider.open`, measured. `access`: what its programs may reach through an egress proxy of their own; None: no network."""
    metrics, started, opened = measured(WorkerMetrics), time.monotonic(), False
    try:
        async with AsyncExitStack() as stack:
            listener = None if access is None else await stack.enter_async_context(listening(access))
            sandbox = await stack.enter_async_context(
                provider.open(spec if listener is None else listener.spec(spec))
            )
            if listener is not None:
                await listener.begin(sandbox)
                sandbox = NetworkedSandbox(sandbox, listener)
            opened = True
            metrics.start_s.observe(time.monotonic() - started)
            metrics.opened.inc()
            metrics.sandboxes.inc()
            try:
                yield sandbox
            finally:
                metrics.sandboxes.dec()
    except SandboxError as error:
        if not opened:
            metrics.failed.labels("full" if isinstance(error, SandboxFull) else "failing").inc()
        raise
