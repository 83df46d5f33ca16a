"""What runs: processes with their loops, rollout servers, leases, the outbox, what was counted as refused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.config import Config
from orchestrator.look.standing import Standing, standing
from orchestrator.pool.culprits import ROOM
from orchestrator.pool.draining import calls_left, kind_of, living_gateways, own_left
from orchestrator.pool.history import counts
from orchestrator.pool.presence import LoopReport, ProcessReport, present
from orchestrator.pool.runs import Run
from orchestrator.scheduling.admission import QueueSettings

LEASES = 200  # shown, those that run out first


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process. `state`: lives | silent | stuck | stopped | draining | drained; `silent_s` since it was last heard of. `drains` is what it
    is to whoever drains it, runner or gateway, null: it cannot be; `left`: how much it still holds of its own, null: it does not drain, or
    has not heard yet."""

    process: str
    host: str
    pid: int
    state: str
    silent_s: float
    loops: list[LoopReport]
    drains: str | None
    draining: bool
    left: int | None


@dataclass(frozen=True, slots=True)
class ServerLine:
    """A rollout server. `state`: as its gateway keeps it, or stopped: it does not answer any more, of a run that has ended. `wanted`: the
    newest version; `leased`: whether a gateway owns it now. Times are seconds since 1970. `left`: calls that it still has while it drains,
    null: it does not, or not every gateway has heard yet."""

    url: str
    state: str
    version: int | None
    wanted: int | None
    owner: str | None
    leased: bool
    lease_until: float | None
    detail: str | None
    changed: float
    draining: bool
    left: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseLine:
    """A rollout that somebody works on: `running` an attempt, `verifying` it."""

    rollout_id: int
    group_id: int
    attempt: int
    state: str
    owner: str | None
    epoch: int
    until: float | None
    since: float
    domain: str
    scaffold: str


@dataclass(frozen=True, slots=True)
class OutboxLine:
    """Messages of one kind that are owed to the bus. `due`: those whose time has come; `oldest_s`: the oldest of these."""

    kind: str
    owed: int
    due: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """Sandboxes in use: one of each attempt and of each verification under way. `no_room`: slots that wait for room on their disk."""

    attempts: int
    verifications: int
    no_room: int


@dataclass(frozen=True, slots=True)
class System:
    """`no_progress_s`: after how many seconds without progress a loop counts as stuck."""

    run: str
    standing: Standing
    no_progress_s: float
    processes: list[ProcessLine]
    servers: list[ServerLine]
    sandboxes: Sandboxes
    leases: list[LeaseLine]
    leased: int
    outbox: list[OutboxLine]
    counters: dict[str, int]


_SERVERS = text(
    """
    SELECT url, state, version,
           (SELECT max(v.version) FROM policy_versions v WHERE v.run_id = :run AND v.superseded_by IS NULL) AS wanted, owner,
           coalesce(lease_until > clock_timestamp(), false) AS leased, extract(epoch FROM lease_until)::float8 AS lease_until, detail,
           extract(epoch FROM changed)::float8 AS changed, draining IS NOT NULL AS draining
    FROM rollout_servers WHERE run_id = :run ORDER BY url
    """
)
_LEASES = text(
    """
    SELECT r.rollout_id, r.group_id, r.attempt::int AS attempt, r.state, r.lease_owner, r.lease_epoch,
           extract(epoch FROM r.lease_until)::float8 AS until,
           extract(epoch FROM r.changed)::float8 AS since, g.domain, g.scaffold
    FROM rollouts r JOIN groups g USING (group_id)
    WHERE r.run_id = :run AND r.state IN ('running', 'verifying') AND r.state NOT IN ('verified', 'lost')
    ORDER BY r.lease_until, r.rollout_id LIMIT :limit
    """
)
_LEASED = text(
    """
    SELECT state, count(*) AS n FROM rollouts
    WHERE run_id = :run AND state IN ('running', 'verifying') AND state NOT IN ('verified', 'lost') GROUP BY state
    """
)
_OUTBOX = text(
    """
    SELECT kind, count(*) AS owed, count(*) FILTER (WHERE due) AS due,
           extract(epoch FROM clock_timestamp() - min(at) FILTER (WHERE due))::float8 AS oldest_s
    FROM (SELECT at, coalesce(not_before <= clock_timestamp(), true) AS due,
                 array_to_string((string_to_array(subject, '.'))[1:CASE WHEN subject ~ '^(work|results)[.]' THEN 2 ELSE 1 END], '.') AS kind
          FROM outbox WHERE run_id = :run) owed
    GROUP BY kind ORDER BY kind
    """
)


async def system(connection: AsyncConnection, run: Run, config: Config, settings: QueueSettings) -> System:
    """`config` is what the run keeps, `settings` those of admission."""
    key = {"run": run.run_id}
    limit = config.watchdog.no_progress_s
    found = await present(connection, run.run_id)
    gateways = living_gateways(found, limit)
    leased = {row.state: int(row.n) for row in await connection.execute(_LEASED, key)}
    leases = await connection.execute(_LEASES, {**key, "limit": LEASES})
    return System(
        run=run.name,
        standing=await standing(connection, run, config, settings),
        no_progress_s=limit,
        processes=[_process(one, limit) for one in found],
        servers=[
            _server(ServerLine(*row), gateways, run.state) for row in await connection.execute(_SERVERS, key)
        ],
        sandboxes=Sandboxes(leased.get("running", 0), leased.get("verifying", 0), _without_room(found)),
        leases=[LeaseLine(*row) for row in leases],
        leased=sum(leased.values()),
        outbox=[OutboxLine(*row) for row in await connection.execute(_OUTBOX, key)],
        counters=dict(sorted((await counts(connection, run.run_id)).items())),
    )


def _process(report: ProcessReport, limit: float) -> ProcessLine:
    silent = not report.stopped and report.silent_s > limit
    hangs = any(loop.stuck_s for loop in report.loops)
    left = own_left(report)
    well = ("drained" if left == 0 else "draining") if report.draining else "lives"
    state = "stopped" if report.stopped else "silent" if silent else "stuck" if hangs else well
    kind = None if report.stopped else kind_of(report.process)
    return ProcessLine(
        report.process,
        report.host,
        report.pid,
        state,
        report.silent_s,
        list(report.loops),
        kind,
        report.draining,
        left,
    )


def _server(line: ServerLine, gateways: Sequence[ProcessReport], run_state: str) -> ServerLine:
    if run_state == "ended" and line.state == "failed" and not line.leased:
        line = replace(line, state="stopped", detail="the run has ended")
    return replace(line, left=calls_left(gateways, line.url)) if line.draining else line


def _without_room(found: Sequence[ProcessReport]) -> int:
    return sum(loop.item == ROOM for process in found if not process.stopped for loop in process.loops)
