"""I5: no sandbox outlives its owner by more than its TTL. Sandboxes belong to a machine; only those of the audited run's workers are
examined."""

import anyio
import anyio.to_thread

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.i5_leases import SLACK_S
from orchestrator.audit.snapshot import Outside
from orchestrator.contracts.processes import WORKERS
from sandboxes.owner import Record, records

REMOVED = "sandboxes of dead owners are removed"
CHECKS_PER_TTL = 20  # not counting the last check's duration


async def sandboxes(outside: Outside, ttl_s: float) -> Checked:
    """The time of an owner's death is not recorded, so the check waits up to one time to live for a dead owner's sandboxes to be removed.
    Call it outside of a transaction. Sandboxes from before the machine's last boot are not waited for: workers remove those when they
    start."""
    findings = Findings(invariant="I5", name=REMOVED)
    root = outside.sandboxes
    if root is None:
        return findings.skipped("sandboxes belong to a machine, not to a run: their directory was not given")
    if outside.alive is None:
        return findings.skipped("it is not known whether a runner lives")
    if not outside.alive.intersection(WORKERS):
        return findings.skipped(
            "no runner or verifier has lived for a while: the next one removes sandboxes as it starts"
        )

    def list_records() -> list[Record]:
        return [record for record in records(root) if record.worker.startswith(outside.workers)]

    own_records = await anyio.to_thread.run_sync(list_records)
    findings.examined = len(own_records)
    left = {record.id: record for record in own_records if record.orphaned(root)}
    with anyio.move_on_after(ttl_s + SLACK_S):
        while any(record.owner.of_this_boot for record in left.values()):
            await anyio.sleep(ttl_s / CHECKS_PER_TTL)
            remaining_ids = {record.id for record in await anyio.to_thread.run_sync(list_records)}
            left = {name: record for name, record in left.items() if name in remaining_ids}
    for record in left.values():
        findings.add(
            f"sandbox {record.id} is there, and its owner (pid {record.owner.pid}) is dead for more than {ttl_s:g} s",
            sandbox=record.id,
            directory=str(root / record.id),
            owner_pid=record.owner.pid,
            worker=record.worker,
        )
    return findings.checked()
