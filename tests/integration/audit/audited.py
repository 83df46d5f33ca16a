"""The auditor on the rows that a test has damaged."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.audit import audit
from orchestrator.audit.findings import Report
from orchestrator.pool.runs import StoredRun
from tests.violations import nothing_found


async def no_violations(
    engine: AsyncEngine,
    run: str,
    policies: Path | None = None,
    *,
    only: Collection[str] = (),
    but: Collection[str] = (),
    ledger: Sequence[str] | None = None,
) -> Report:
    """None of I1–I7 by the rows of a run, its checkpoints in `policies`, and the submissions of `ledger`. Where a test writes rows by hand that no
    process would write, it names the checks that do not see them (`only`), or those that do (`but`)."""
    report = await audit(engine, run, policies, ledger)
    names = {check.name for check in report.checks}
    assert {*only, *but} <= names, names
    looked = [check for check in report.checks if check.name in (only or names - {*but})]
    assert any(check.examined for check in looked)
    await nothing_found(engine, report, names=[check.name for check in looked])
    return report


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """A run, work on its data pool, and the auditor on it."""

    engine: AsyncEngine
    run: StoredRun

    async def do(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """The result of `work` in one transaction."""
        async with self.engine.begin() as connection:
            return await work(connection)

    async def audited(self) -> None:
        """Assert that no invariant is violated."""
        await no_violations(self.engine, self.run.name)
