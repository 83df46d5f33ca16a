"""Broken invariants, as tests report them: each with its evidence.

tests/architecture/test_violations.py names tests that look for broken invariants without the functions of this module.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from subprocess import CompletedProcess
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ops.lab.demo.outcome import LOST, TRAINED_TWICE
from orchestrator.audit.findings import Checked, Report, plain
from sandboxes.conformance import CheckResult


class Violation(AssertionError):
    """An invariant is broken: a submission is lost, a group was trained twice, the auditor found something, or a program got out of its sandbox.

    No busy machine excuses that, so a test that raises this gets no second chance in the gate. The message is the evidence.
    """


SHOWN: Final = 10  # of each kind of evidence; the others are counted
LAST: Final = 12  # transitions of one group
_MISSING = """select l.submission, s.status, s.reason, s.at, g.group_id, g.state, g.reason as filtered, g.purpose, g.seq
  from unnest(cast(:ledger as text[])) l(submission)
  left join submissions s on s.run_id = :run and s.submission = l.submission
  left join groups g on g.run_id = s.run_id and g.submission = s.submission
 where (s.status = 'rejected' or g.done) is not true order by 1"""
_TWICE = """select i.group_id, array_agg(b.batch_no order by b.batch_no) as batches
  from batch_items i join batches b on b.batch_id = i.batch_id
 where b.run_id = :run and b.state = 'committed' and not i.voided group by 1 having count(*) > 1 order by 1"""
_ROLLOUTS = """select rollout_id, group_id, member, state, attempt, lease_epoch, lease_owner, lease_until, failure_class, reason
  from rollouts where run_id = :run and group_id = :group order by member"""
_GROUPS = """select group_id, submission from groups where run_id = :run and (group_id = any(cast(:groups as bigint[]))
    or submission = any(cast(:submissions as text[]))
    or group_id in (select group_id from rollouts where rollout_id = any(cast(:rollouts as bigint[])))) order by 1"""
_HISTORY = """select * from (
  select t.transition_id, t.at, t.kind, t.entity_id, t.from_state, t.to_state, t.epoch, t.reason from transitions t
   where t.run_id = :run and (t.kind = 'group' and t.entity_id = :group or t.kind = 'rollout' and t.entity_id in (
     select rollout_id from rollouts where group_id = :group))
   order by t.transition_id desc limit :last) latest order by transition_id"""
_ENDS = "select at, kind, entity_id, from_state, to_state, epoch, reason from transitions where run_id = :run and kind = 'run' order by transition_id"


async def nothing_lost(connection: AsyncConnection, run_id: int, ledger: Sequence[str]) -> None:
    """Every submission of the ledger is in a terminal state, and no group was trained twice. Raises Violation with the rows of what is missing."""
    lost = await connection.scalar(text(LOST), {"run": run_id, "ledger": list(ledger)})
    if lost:
        missing = await _rows(connection, _MISSING, run=run_id, ledger=list(ledger))
        lines = [f"{lost} of the {len(ledger)} submissions in the ledger are in no terminal state:"]
        for row in missing[:SHOWN]:
            lines += await _of_submission(connection, run_id, row)
        lines += [
            _and_others(missing),
            *(_change(row) for row in await _rows(connection, _ENDS, run=run_id)),
        ]
        raise Violation("\n".join(filter(None, lines)))
    if await connection.scalar(text(TRAINED_TWICE), {"run": run_id}):
        twice = await _rows(connection, _TWICE, run=run_id)
        lines = [f"{len(twice)} groups were trained more than once:"]
        for row in twice[:SHOWN]:
            lines.append(f"group {row['group_id']} is in the committed batches {row['batches']}")
            lines += await _history(connection, run_id, row["group_id"])
        raise Violation("\n".join(filter(None, [*lines, _and_others(twice)])))


def sentences(report: Report, checks: Sequence[Checked]) -> list[str]:
    """The auditor's findings, with the rows that they name."""
    lines = [f"the auditor found {sum(check.found for check in checks)} violations in run {report.run!r}:"]
    for check in checks:
        lines.append(f"{check.invariant} {check.name}: {check.found} of {check.examined}")
        lines += [f"  {each.what} ({_values(each.rows)})" for each in check.violations[:SHOWN]]
    return lines


async def nothing_found(engine: AsyncEngine, report: Report, *, names: Collection[str] = ()) -> None:
    """The auditor found nothing, in the checks `names` (in all if there are none). Raises Violation with its sentences, the rows that they
    name, and the last transitions of these."""
    checks = [check for check in report.checks if check.found and (not names or check.name in names)]
    if not checks:
        return
    lines = sentences(report, checks)
    named = [each.rows for check in checks for each in check.violations[:SHOWN]]
    async with engine.connect() as connection:
        run_id = await connection.scalar(
            text("select run_id from runs where name = :name"), {"name": report.run}
        )
        groups = await _rows(
            connection,
            _GROUPS,
            run=run_id,
            groups=[row["group_id"] for row in named if isinstance(row.get("group_id"), int)],
            rollouts=[row["rollout_id"] for row in named if isinstance(row.get("rollout_id"), int)],
            submissions=[str(row["submission"]) for row in named if row.get("submission") is not None],
        )
        for row in groups[:SHOWN]:
            lines.append(f"group {row['group_id']} (submission {row['submission']})")
            lines += await _history(connection, int(run_id or 0), row["group_id"])
    raise Violation("\n".join(filter(None, [*lines, _and_others(groups)])))


def command_found_nothing(audited: CompletedProcess[str]) -> None:
    """`penstock audit`, with or without `--json`, ran and found nothing. Raises Violation with its output, which names the rows, otherwise."""
    found = _counted(audited.stdout)
    if found:
        raise Violation(audited.stdout)
    assert (audited.returncode, found) == (0, 0), audited.stdout + audited.stderr


def _counted(output: str) -> int | None:
    """The number of violations at the end of an output of `penstock audit`; None: it has no result."""
    if output.startswith("{"):
        return int(json.loads(output)["violations"])
    counted = re.findall(r"\b(\d+)\s+violations\b", output)
    return int(counted[-1]) if counted else None


def promise_kept(result: CheckResult) -> None:
    """A check of the conformance suite passed. Raises Violation if something got out of the sandbox."""
    if result.escaped:
        raise Violation(f"an escape from a sandbox, {result.name}: {result.detail}")
    assert result.passed, result.detail


def nothing_got_out(got: Mapping[str, object]) -> None:
    """No program got out of its sandbox. `got`: the attempts that did, and what each of them reached. Raises Violation with all of them."""
    if got:
        reached = "".join(f"\n{attempt}: {what}" for attempt, what in got.items())
        raise Violation(f"{len(got)} attempts got out of a sandbox:{reached}")


async def _of_submission(connection: AsyncConnection, run_id: int, row: Mapping[str, Any]) -> list[str]:
    if row["status"] is None:
        return [f"{row['submission']}: no row, so it was never answered"]
    if row["group_id"] is None:
        return [f"{row['submission']}: {_values(row)}, and no group"]
    rollouts = await _rows(connection, _ROLLOUTS, run=run_id, group=row["group_id"])
    return [
        f"{row['submission']}: {_values(row)}",
        *(f"  rollout {rollout['rollout_id']}: {_values(rollout)}" for rollout in rollouts),
        *await _history(connection, run_id, row["group_id"]),
    ]


async def _history(connection: AsyncConnection, run_id: int, group_id: int) -> list[str]:
    """The last transitions of a group and its rollouts."""
    rows = await _rows(connection, _HISTORY, run=run_id, group=group_id, last=LAST)
    return [_change(row) for row in rows]


def _change(row: Mapping[str, Any]) -> str:
    epoch = "" if row["epoch"] is None else f", epoch {row['epoch']}"
    reason = f": {row['reason']}" if row["reason"] else ""
    moved = f"{row['from_state'] or 'new'} → {row['to_state']}"
    return f"  {row['at']:%H:%M:%S.%f} {row['kind']} {row['entity_id']} {moved}{epoch}{reason}"


def _values(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {plain(value)}" for name, value in row.items() if value is not None)


def _and_others(rows: Sequence[object]) -> str:
    return f"… and {len(rows) - SHOWN} others" if len(rows) > SHOWN else ""


async def _rows(
    connection: AsyncConnection, statement: str, **parameters: Any
) -> Sequence[Mapping[str, Any]]:
    return [row._asdict() for row in await connection.execute(text(statement), parameters)]
