"""I5: no sandbox outlives its owner by more than its TTL. Sandboxes belong to a machine; only those of the audited run's workers are looked at."""

import anyio
import anyio.to_thread

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.leases import SLACK_S
from orchestrator.audit.snapshot import Outside
from sandboxes.owner import Record, records

REMOVED = "sandboxes of dead owners are removed"
WORKERS = frozenset({"runner", "verifier"})
LOOKS = 20  # within one time to live, beside what the last look takes


async def sandboxes(outside: Outside, ttl_s: float) -> Checked:
    """When an owner died is written nowhere: what a dead one has left is waited for, a time to live at most. Nobody may hold a transaction
    meanwhile. Of a machine that was started since, nothing is waited for: whoever works there has looked as it began."""
    findings = Findings("I5", REMOVED)
    root = outside.sandboxes
    if root is None:
        reason = "sandboxes belong to a machine, not to a run: their directory was not given"
    elif outside.alive is None:
        reason = "it is not known whether a runner lives"
    elif not outside.alive & WORKERS:
        reason = "no runner or verifier has lived for a while: the next one removes sandboxes as it starts"
    else:
        reason = ""
    if root is None or reason:
        return Checked(findings.invariant, findings.name, 0, 0, (), reason)

    def look() -> list[Record]:
        return [record for record in records(root) if record.worker.startswith(outside.workers)]

    ours = await anyio.to_thread.run_sync(look)
    findings.examined = len(ours)
    left = {record.id: record for record in ours if record.orphaned(root)}
    with anyio.move_on_after(ttl_s + SLACK_S):
        while any(record.owner.of_this_boot for record in left.values()):
            await anyio.sleep(ttl_s / LOOKS)
            there = {record.id for record in await anyio.to_thread.run_sync(look)}
            left = {name: record for name, record in left.items() if name in there}
    for record in left.values():
        findings.add(
            f"sandbox {record.id} is there, and its owner (pid {record.owner.pid}) is dead for more than {ttl_s:g} s",
            sandbox=record.id,
            directory=str(root / record.id),
            owner_pid=record.owner.pid,
            worker=record.worker,
        )
    return findings.checked()
