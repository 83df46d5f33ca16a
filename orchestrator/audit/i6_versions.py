"""I6: the served weights are the published weights: the chain of versions, their manifests and files, the servers' claims."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement, with_trajectories
from orchestrator.pool.policy_versions import needed_versions
from orchestrator.pool.rows import from_row

MANIFEST = "manifest.json"

VERSIONS = (
    # A number is never used twice (the primary key); weights derive from older weights, except for the first.
    Statement(
        invariant="I6",
        name="versions have parents",
        examined="policy_versions where run_id = :run",
        broken="""select v.version, v.parent, v.superseded_by, p.version is not null as parent_exists from policy_versions v
             left join policy_versions p on p.run_id = v.run_id and p.version = v.parent
             left join policy_versions n on n.run_id = v.run_id and n.version = v.superseded_by
            where v.run_id = :run
              and ((v.parent is not null and p.version is null)
                or v.parent >= v.version
                or v.superseded_by <= v.version or (v.superseded_by is not null and n.version is null)
                or (v.parent is null and exists (select 1 from policy_versions e where e.run_id = v.run_id and e.version < v.version)))""",
        says="version {version} has parent {parent} (which exists: {parent_exists}) and is superseded by {superseded_by}: not a chain",
    ),
    # Versions that no rewind superseded form one line: each derives from the one before, by the next committed batch, or repeats it after
    # a rewind.
    Statement(
        invariant="I6",
        name="versions follow their batches",
        examined="policy_versions where run_id = :run and superseded_by is null",
        broken="""select version, parent, version_before, batch_no, batch_before from (
             select version, parent, batch_no, lag(version) over w as version_before, lag(batch_no) over w as batch_before,
                    manifest_sha = lag(manifest_sha) over w and batch_no is not distinct from lag(batch_no) over w as again
               from policy_versions where run_id = :run and superseded_by is null window w as (order by version)) v
            where parent is distinct from version_before
               or (version_before is not null and not again and (batch_no is null or batch_no <> coalesce(batch_before + 1, 0)))""",
        says="version {version} (parent {parent}, batch {batch_no}) follows version {version_before} (batch {batch_before})",
    ),
    # A server is ready at a version once its canary has passed; only published versions have a canary.
    Statement(
        invariant="I6",
        name="ready rollout servers serve a published version",
        examined="rollout_servers where run_id = :run and state = 'ready'",
        broken="""select s.server_id, s.url, s.version from rollout_servers s
             left join policy_versions p on p.run_id = s.run_id and p.version = s.version
            where s.run_id = :run and s.state = 'ready' and p.version is null""",
        says="rollout server {server_id} ({url}) is ready at version {version}, which was never published",
    ),
    # Suspect steps are marked with the rollout's result: before it, and in attempts that do not count, a step may be suspect without a
    # mark.
    Statement(
        invariant="I6",
        name="steps are of published versions",
        examined="steps where run_id = :run",
        broken="""select u.version, count(*) as steps, min(u.rollout_id) as rollout_id
             from (select s.rollout_id, s.spans[3*i + 1] as version
                     from steps s join rollouts r on r.rollout_id = s.rollout_id and r.attempt = s.attempt
                                                 and r.state in ('finished', 'verifying', 'verified'),
                          generate_series(0, cardinality(s.spans)/3 - 1) i
                    where s.run_id = :run
                      and not exists (select 1 from step_marks m where m.run_id = s.run_id and m.rollout_id = s.rollout_id
                                         and m.attempt = s.attempt and m.idx = s.idx and m.reason = 'version_suspect')) u
            where not exists (select 1 from policy_versions p where p.run_id = :run and p.version = u.version)
            group by u.version""",
        says="{steps} version spans (the first in rollout {rollout_id}) name version {version}, which was never published",
        skip=with_trajectories,
    ),
)

# `made`: the original version of these weights; a rewind publishes them again.
_PUBLISHED = """select v.version, v.batch_no, v.path, v.manifest_sha, b.digest,
                       (select min(m.version) from policy_versions m where m.run_id = v.run_id and m.manifest_sha = v.manifest_sha) as made
                  from policy_versions v
                  left join batches b on b.run_id = v.run_id and b.batch_no = v.batch_no and b.state = 'committed'
                 where v.run_id = :run and v.superseded_by is null order by v.version"""


async def weights(snapshot: Snapshot) -> Checked:
    """Every version whose directory must still exist: its manifest is the published one, and its files match the manifest."""
    findings = Findings(invariant="I6", name="weights are those that were published")
    if snapshot.outside.policies is None:
        return findings.skipped("the directory of checkpoints was not given")
    root = snapshot.outside.policies / snapshot.run
    keep = snapshot.config.trainer.keep_checkpoints
    needed = await needed_versions(snapshot.connection, snapshot.run_id, keep)
    for row in await snapshot.rows(_PUBLISHED):
        if row.version not in needed:
            continue
        # By name: a run's directory may have been moved or copied.
        directory = root / Path(row.path).name
        published = from_row(KnownCheckpoint, row, without=("version", "path"))
        faults = await anyio.to_thread.run_sync(lambda d=directory, p=published: list(faults_of(d, p)))  # type: ignore[misc]
        if faults and not directory.exists() and not await _still_needed(snapshot, row.version, keep):
            continue  # pruned while we looked
        findings.examined += 1
        for fault in faults:
            findings.add(f"version {row.version}: {fault}", version=row.version, directory=str(directory))
    return findings.checked()


# The weights that generated the steps, as the rollout servers reported with their tokens.
_GENERATED = """select u.*, v.path from (
                    select split_part(w, ':', 1)::bigint as version, split_part(w, ':', 2) as digest,
                           count(*) as steps, min(s.rollout_id) as rollout_id
                      from steps s, unnest(s.weights) w where s.run_id = :run group by 1, 2) u
                  join policy_versions v on v.run_id = :run and v.version = u.version order by u.version, u.digest"""


async def generated(snapshot: Snapshot) -> Checked:
    """Every step came from the weights that were published as its versions: one digest per version, and that of the directory, if it still exists."""
    findings = Findings(invariant="I6", name="steps are of the published weights")
    digests: dict[int, str] = {}
    for row in await snapshot.rows(_GENERATED):
        findings.examined += row.steps
        steps = f"{row.steps} steps (the first in rollout {row.rollout_id}) name version {row.version}"
        if digests.setdefault(row.version, row.digest) != row.digest:
            findings.add(
                f"{steps}, but were generated by the weights {row.digest}, others by {digests[row.version]}",
                version=row.version,
            )
        elif snapshot.outside.policies is not None:
            directory = snapshot.outside.policies / snapshot.run / Path(row.path).name
            published = await anyio.to_thread.run_sync(_tensors_of, directory)
            if published is not None and published != row.digest:
                findings.add(
                    f"{steps}, but were generated by the weights {row.digest}; {directory} holds {published}",
                    version=row.version,
                )
    return findings.checked()


def _tensors_of(directory: Path) -> str | None:
    """The digest of the tensors of a checkpoint, as servers compute it (runtime/weights_digest.py); None: it was pruned."""
    try:
        names = json.loads((directory / MANIFEST).read_bytes())["files"]
        lines = []
        for name in names:
            if not name.endswith(".safetensors") or "/" in name:
                continue
            raw = (directory / name).read_bytes()
            at = 8 + int.from_bytes(raw[:8], "little")
            for tensor, entry in json.loads(raw[8:at]).items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    content = hashlib.sha256(raw[at + begin : at + end]).hexdigest()
                    shape = "x".join(map(str, entry["shape"]))
                    lines.append(f"{tensor}\0{entry['dtype']}\0{shape}\0{content}")
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"no tensors ({type(error).__name__})"


async def _still_needed(snapshot: Snapshot, version: int, keep: int) -> bool:
    async with snapshot.engine.connect() as connection:
        return version in await needed_versions(connection, snapshot.run_id, keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheckpoint:
    """The known facts of a checkpoint. `made`: its original version; `digest`: of its batch. None: not compared."""

    manifest_sha: str
    batch_no: int | None
    made: int | None = None
    digest: bytes | None = None


def faults_of(directory: Path, published: KnownCheckpoint) -> Iterator[str]:
    """Faults of a checkpoint, each as one sentence that names the file."""
    try:
        raw = (directory / MANIFEST).read_bytes()
    except OSError as error:
        yield f"{directory} has no manifest that can be read ({type(error).__name__})"
        return
    if hashlib.sha256(raw).hexdigest() != published.manifest_sha:
        yield f"{directory / MANIFEST} is not the published one: its sha256 differs"
    try:
        manifest = json.loads(raw)
        files = {
            str(name): (str(entry["sha256"]), int(entry["bytes"]))
            for name, entry in manifest["files"].items()
        }
        state = manifest["state"]
        recorded = (state["version"], state["batch_no"])
        batch_digest = state.get("extra", {}).get("batch_digest")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"{directory / MANIFEST} is not a manifest ({type(error).__name__})"
        return
    if published.made is not None and recorded != (published.made, published.batch_no):
        yield f"its manifest is of version {recorded[0]}, batch {recorded[1]}"
    if published.digest is not None and batch_digest != published.digest.hex():
        yield f"it was trained from another batch than batch {published.batch_no}: the digest in its manifest differs"
    for name, (sha, size) in files.items():
        yield from _fault_of_file(directory / name, sha, size)
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name != MANIFEST and name not in files:
            yield f"{path} is not in its manifest: an engine may load it"


def _fault_of_file(path: Path, sha: str, size: int) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            length = file.tell()
    except OSError as error:
        yield f"{path} cannot be read ({type(error).__name__})"
        return
    if length != size:
        yield f"{path} has {length} bytes, not {size}"
    elif found != sha:
        yield f"{path} does not match its sha256"
