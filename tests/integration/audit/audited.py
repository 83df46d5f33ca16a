"""The auditor on the rows that a test has damaged."""

from collections.abc import Collection, Sequence
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.audit import audit
from orchestrator.audit.findings import Report
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
