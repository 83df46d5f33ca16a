"""The auditor on a stack that a test has disturbed."""

from orchestrator.audit import audit
from orchestrator.audit.findings import Report
from orchestrator.pool.engine import Role, open_engine
from tests.e2e.observer import Observer
from tests.e2e.stack_rig import Stack
from tests.violations import nothing_found


async def no_violations(stack: Stack, seen: Observer) -> Report:
    """No violation of I1–I7, by rows, files, ledger and the remains of sandboxes. The stack must be up."""
    config = stack.home.connected()
    async with open_engine(config.services.database_url, Role.READER, size=2, name="audit") as engine:
        report = await audit(
            engine,
            seen.run,
            stack.home.policies,
            seen.ledger,
            alive=stack.status().ready(),
            sandbox_root=stack.sandbox_root,
            workers=stack.home.workers,
        )
        await nothing_found(engine, report)
    return report
