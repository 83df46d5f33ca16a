"""The auditor on the rows that a test has damaged."""

from collections.abc import Collection
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.audit import audit
from orchestrator.audit.findings import Report


async def no_violations(
    engine: AsyncEngine,
    run: str,
    policies: Path | None = None,
    *,
    only: Collection[str] = (),
    but: Collection[str] = (),
) -> Report:
    """None of I1–I7 by the rows of a run, and by its checkpoints in `policies`. Where a test writes rows by hand that no process would write,
    it names the checks that do not see them (`only`), or those that do (`but`)."""
    report = await audit(engine, run, policies)
    names = {check.name for check in report.checks}
    assert {*only, *but} <= names, names
    looked = [check for check in report.checks if check.name in (only or names - {*but})]
    assert any(check.examined for check in looked)
    found = [each for check in looked for each in check.violations]
    assert not found, found
    return report
