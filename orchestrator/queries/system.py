"""The processes of a run with their loops, rollout servers, leases, the outbox, the counts of refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RolloutState, RunState, ServerState
from orchestrator.pool.counter_names import meaning
from orchestrator.pool.draining import calls_left, kind_of, living_gateways, own_left
from orchestrator.pool.heartbeats import LoopReport, ProcessReport, present
from orchestrator.pool.rows import from_row
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.stall_causes import ROOM
from orchestrator.pool.transitions import counts
from orchestrator.queries.status import RunStatus, run_status
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.settings.config import Config

LEASES = 200  # shown, those that expire first
LEFT = "no gateway uses it: it belongs to an earlier start"


class ReportedProcessState(StrEnum):
    """How a process is, as its reports tell."""

    LIVES = "lives"
    STUCK = "stuck"  # a loop makes no progress
    SILENT = "silent"  # it reports nothing
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"


class ReportedServerState(StrEnum):
    """A rollout server as its gateway last wrote it (`ServerState`). STOPPED: it failed, because it or its gateway has ended in good order."""

    STARTING = ServerState.STARTING.value
    SYNCING = ServerState.SYNCING.value
    READY = ServerState.READY.value
    FAILED = ServerState.FAILED.value
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLine:
    """One process. `state`: lives | silent | stuck | stopped | draining | drained; `silent_s`: since its last report. `drains`: its kind
    for draining, runner or gateway, null: it cannot drain; `left`: how much of its own work it still holds, null: it does not drain, or has
    not received the request yet."""

    process: str
    host: str
    pid: int
    state: ReportedProcessState
    silent_s: float
    loops: list[LoopReport]
    drains: str | None
    draining: bool
    left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """A rollout server. `state`: as its gateway records it, or stopped: it failed, and no living gateway uses it. `wanted`: the newest
    version; `leased`: whether a gateway owns it now. Times are seconds since 1970. `left`: its remaining calls while it drains, null: it
    does not drain, or not every gateway has received the request yet."""

    url: str
    state: ReportedServerState
    version: int | None
    wanted: int | None
    owner: str | None
    leased: bool
    lease_until: float | None
    detail: str | None
    changed: float
    draining: bool
    left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLine:
    """A rollout that a worker holds: `running` an attempt, `verifying` it."""

    rollout_id: int
    group_id: int
    attempt: int
    state: RolloutState
    owner: str | None
    epoch: int
    until: float | None
    since: float
    domain: str
    scaffold: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLine:
    """Messages of one kind not yet sent to the bus. `due`: those whose time has come; `oldest_s`: the age of the oldest due one."""

    kind: str
    owed: int
    due: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """Sandboxes in use: one of each attempt and of each verification under way. `no_room`: slots that wait for space on their disk."""

    attempts: int
    verifications: int
    no_room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`no_progress_s`: seconds without progress after which a loop counts as stuck."""

    run: str
    status: RunStatus
    no_progress_s: float
    processes: list[ProcessLine]
    servers: list[ServerLine]
    sandboxes: Sandboxes
    leases: list[LeaseLine]
    leased: int
    outbox: list[OutboxLine]
    counters: dict[str, int]
    meanings: dict[str, str]  # of the counters, by name


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
    SELECT r.rollout_id, r.group_id, r.attempt::int AS attempt, r.state, r.lease_owner AS owner, r.lease_epoch AS epoch,
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


async def system(
    connection: AsyncConnection, run: StoredRun, config: Config, settings: QueueSettings
) -> System:
    """`config`: as the run stores it; `settings`: of admission."""
    key = {"run": run.run_id}
    limit = config.watchdog.no_progress_s
    found = await present(connection, run.run_id)
    gateways = living_gateways(found, limit)
    leased = {row.state: int(row.n) for row in await connection.execute(_LEASED, key)}
    leases = await connection.execute(_LEASES, {**key, "limit": LEASES})
    counted = dict(sorted((await counts(connection, run.run_id)).items()))
    return System(
        run=run.name,
        status=await run_status(connection, run, config, settings),
        no_progress_s=limit,
        processes=[_process(report, limit) for report in found],
        servers=[
            _server(from_row(ServerLine, row), gateways, run.state)
            for row in await connection.execute(_SERVERS, key)
        ],
        sandboxes=Sandboxes(
            leased.get(RolloutState.RUNNING, 0), leased.get(RolloutState.VERIFYING, 0), _without_room(found)
        ),
        leases=[from_row(LeaseLine, row) for row in leases],
        leased=sum(leased.values()),
        outbox=[from_row(OutboxLine, row) for row in await connection.execute(_OUTBOX, key)],
        counters=counted,
        meanings={name: meaning(name) for name in counted},
    )


def _process(report: ProcessReport, limit: float) -> ProcessLine:
    silent = not report.stopped and report.silent_s > limit
    stuck = any(loop.stuck_s for loop in report.loops)
    left = own_left(report)
    if report.stopped:
        state = ReportedProcessState.STOPPED
    elif silent:
        state = ReportedProcessState.SILENT
    elif stuck:
        state = ReportedProcessState.STUCK
    elif report.draining:
        state = ReportedProcessState.DRAINED if left == 0 else ReportedProcessState.DRAINING
    else:
        state = ReportedProcessState.LIVES
    kind = None if report.stopped else kind_of(report.process)
    return ProcessLine(
        process=report.process,
        host=report.host,
        pid=report.pid,
        state=state,
        silent_s=report.silent_s,
        loops=list(report.loops),
        drains=kind,
        draining=report.draining,
        left=left,
    )


def _server(line: ServerLine, gateways: Sequence[ProcessReport], run_state: RunState) -> ServerLine:
    ended = run_state is RunState.ENDED
    if line.state is ReportedServerState.FAILED and not line.leased and (ended or gateways):
        line = replace(line, state=ReportedServerState.STOPPED, detail="the run has ended" if ended else LEFT)
    return replace(line, left=calls_left(gateways, line.url)) if line.draining else line


def _without_room(found: Sequence[ProcessReport]) -> int:
    return sum(loop.item == ROOM for process in found if not process.stopped for loop in process.loops)
