"""All checks of one run, over one snapshot."""

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.audit.findings import Checked, Report
from orchestrator.audit.i1_accepted import ACCEPTED
from orchestrator.audit.i1_blobs import BLOBS
from orchestrator.audit.i2_batches import BATCHES, digests
from orchestrator.audit.i3_external_record import answers, generations
from orchestrator.audit.i3_records import RECORDS
from orchestrator.audit.i3_steps import announced, sample_of, sampling_digests, step_digests
from orchestrator.audit.i4_queue import QUEUE, takes
from orchestrator.audit.i5_leases import LEASES
from orchestrator.audit.i5_sandboxes import sandboxes
from orchestrator.audit.i6_versions import VERSIONS, generated, weights
from orchestrator.audit.i7_failures import FAILURES
from orchestrator.audit.resumes import RESUMES
from orchestrator.audit.snapshot import Outside, Snapshot, take_snapshot
from orchestrator.audit.statement import Statement, all_of
from orchestrator.settings.config import Config
from sandboxes.text_files import read_text


async def audit(
    engine: AsyncEngine,
    run: str,
    policies_root: Path | None = None,
    ledger: Path | Sequence[str] | None = None,
    *,
    alive: frozenset[str] | None = None,
    sandbox_root: Path | None = None,
    workers: str = "",
    sample: int | None = None,
    witness: Path | None = None,
    own: Config | None = None,
    tick: Callable[[int, int], None] = lambda *_: None,
) -> Report:
    """Check I1–I7 of the run called `run`, live or ended, and name every row that breaks an invariant. Writes nothing.

    `policies_root` holds one directory of checkpoints per run; `ledger` is a file with a submission id per line, or the ids; `alive`: the run's
    living processes; `sandbox_root`: the directory of this machine's sandboxes, restricted to workers whose name starts with `workers`
    (`Home.workers`); `sample` limits the number of rollouts whose bytes are recomputed; `witness` is a directory as `audit.i3_external_record`
    describes it; `own` is the file's configuration, with the time limits that the run's processes use. None means not known: the checks that need
    it are skipped, and report that (`own`: the limits are the run's original ones). `tick` gets the number of finished parts and of all parts. One
    connection, one repeatable-read transaction; after it, while a dead worker's sandbox exists, up to one time to live of a lease. Raises
    ConfigurationError if the run does not exist, OSError if the ledger cannot be read.
    """
    ids = read_text(ledger).split() if isinstance(ledger, Path) else ledger
    outside = Outside(
        policies=policies_root,
        ledger=ids,
        alive=alive,
        sandboxes=sandbox_root,
        sample=sample,
        witness=witness,
        workers=workers,
        own=own,
    )
    started = time.monotonic()
    async with take_snapshot(engine, run, outside) as snapshot:
        checks = await _checks(snapshot, tick)
    checks.append(await sandboxes(outside, snapshot.config.rollout.lease_ttl_s))
    return Report(run=run, state=snapshot.state, checks=checks, seconds=time.monotonic() - started)


Part = Sequence[Statement] | Callable[[Snapshot], Awaitable[Checked]]


async def _checks(snapshot: Snapshot, tick: Callable[[int, int], None]) -> list[Checked]:
    some = await sample_of(snapshot)
    parts: tuple[Part, ...] = (
        ACCEPTED,
        BLOBS,
        BATCHES,
        digests,
        lambda found: step_digests(found, some),
        sampling_digests,
        lambda found: announced(found, some),
        answers,
        generations,
        RECORDS,
        QUEUE,
        takes,
        LEASES,
        RESUMES,
        VERSIONS,
        weights,
        generated,
        FAILURES,
    )
    checks: list[Checked] = []
    for n, part in enumerate(parts):
        tick(n, len(parts))
        checks += [await part(snapshot)] if callable(part) else await all_of(snapshot, part)
    return checks
