"""The parts of a run that `penstock doctor` compares with this host: rollout servers, processes, the newest weights."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import ServerState
from orchestrator.pool.rows import from_row

_RUN = text("SELECT run_id FROM runs WHERE name = :name")
_SERVERS = text(
    """SELECT url, state, owner, detail, coalesce(lease_until > clock_timestamp(), false) AS leased
         FROM rollout_servers WHERE run_id = :run ORDER BY url"""
)
_LIVING = text(
    "SELECT split_part(process, '-', 1) AS role, count(*) AS n FROM processes WHERE NOT stopped AND last_seen > now() - interval '1 day' GROUP BY 1"
)
_TRAINED = text(
    "SELECT version, path, manifest_sha FROM policy_versions WHERE run_id = :run AND superseded_by IS NULL AND batch_no IS NOT NULL "
    "ORDER BY version DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedServer:
    """A rollout server as its gateway reports it. `owner`: the gateway; None: none has it. `leased`: a gateway has it now."""

    url: str
    state: ServerState
    owner: str | None
    detail: str | None
    leased: bool


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """Weights that the trainer published. `path`: their directory; `manifest_sha`: hex sha256 of its manifest.json."""

    version: int
    path: Path
    manifest_sha: str


async def run_id_of(connection: AsyncConnection, name: str) -> int | None:
    """The run of this name; None if there is none, or no data pool."""
    exists = await connection.scalar(text("SELECT to_regclass('runs')"))
    found: int | None = await connection.scalar(_RUN, {"name": name}) if exists else None
    return found


async def reported_servers(connection: AsyncConnection, run_id: int) -> list[ReportedServer]:
    """The rollout servers of a run, by their URLs."""
    return [from_row(ReportedServer, row) for row in await connection.execute(_SERVERS, {"run": run_id})]


async def living_processes(connection: AsyncConnection) -> dict[str, int]:
    """Processes of all runs that reported within a day and did not stop: their number by role."""
    return {row.role: row.n for row in await connection.execute(_LIVING)}


async def newest_trained_version(connection: AsyncConnection, run_id: int) -> TrainedVersion | None:
    """The newest version that came from a batch and that no rewind superseded."""
    row = (await connection.execute(_TRAINED, {"run": run_id})).one_or_none()
    return from_row(TrainedVersion, row, without=("path",), path=Path(row.path)) if row is not None else None
