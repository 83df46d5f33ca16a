"""`penstock status`: the supervised processes, the unfinished work with its age, and the process that blocks it."""

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.hints import carried
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.cli.terminal import plain
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.states import GroupState, RunState, ServerState
from orchestrator.deploy.embedded.process_spec import ProcessState, SupervisorStatus
from orchestrator.deploy.home import Home
from orchestrator.runtime.figures import age
from orchestrator.settings.config import Config, effective

if TYPE_CHECKING:
    from orchestrator.pool.backlog import BacklogStage, OpenBatch
    from orchestrator.pool.draining import Drainable
    from orchestrator.pool.stall_causes import StallCause

NOTHING, STUCK = 3, 4  # exit statuses
PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """The data pool's view of a run. `stall_causes`: by stage; `stuck`: sentences about loops and processes; `servers`: about rollout servers that
    do not serve; `drains`: processes and servers that drain; `no_signal`: a sentence if the newest groups all scored alike; `without_verdict`:
    one about their rollouts that have no verdict. `open_batch`: the batch that waits for more groups; `failed_batches`: sentences about the
    newest ones that were quarantined or failed. `processes`: how many of it, on any host, have not reported their end."""

    run: str
    state: RunState
    groups: dict[str, int]
    dead_letters: int
    stages: "list[BacklogStage]"
    stall_causes: "dict[str, StallCause]"
    stuck: list[str]
    servers: list[str]
    drains: "list[Drainable]"
    no_signal: str | None
    without_verdict: str | None = None
    open_batch: "OpenBatch | None" = None
    failed_batches: list[str] = field(default_factory=list)
    processes: int = 0

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        stages = []
        for stage in self.stages:
            stall_cause = self.stall_causes.get(stage.name)
            shown = asdict(stage)
            del shown["waits_for_head"]  # `held` says it
            if stall_cause is not None:
                shown["stall_cause"] = {
                    "process": stall_cause.process,
                    "loop": stall_cause.loop,
                    "item": stall_cause.item,
                    "waits_for": stall_cause.waits_for,
                    "seconds": stall_cause.seconds,
                    "sentence": stall_cause.sentence,
                }
            stages.append(shown)
        drains = [
            {"kind": drainable.kind, "id": drainable.id, "state": drainable.state, "left": drainable.left}
            for drainable in self.drains
        ]
        return {**asdict(self), "stages": stages, "stall_causes": sorted(self.stall_causes), "drains": drains}


async def read_run(config: Config) -> StatusReport:
    """Read the data pool. Raises PenstockError, one sentence, if it does not answer."""
    from orchestrator.pool.backlog import open_batch, stages, states
    from orchestrator.pool.draining import drainables
    from orchestrator.pool.engine import Role
    from orchestrator.pool.heartbeats import present
    from orchestrator.pool.opened import opened_run
    from orchestrator.pool.stall_causes import eased, stall_causes, stuck
    from orchestrator.queries.batches import failed_batches
    from orchestrator.queries.dead_letters import count_messages
    from orchestrator.queries.installation import reported_servers
    from orchestrator.queries.training_signal import no_signal, without_verdict
    from orchestrator.scheduling.admission import QueueSettings

    limit = config.watchdog.no_progress_s
    with anyio.move_on_after(PATIENCE_S):
        async with (
            opened_run(config, Role.READER, name="penstock-status") as (engine, run),
            engine.connect() as connection,
        ):
            run_config = effective(run.config, config)
            processes = await present(connection, run.run_id)
            found = eased(
                await stages(connection, run.run_id, run_config, QueueSettings.of(run_config)), processes
            )
            return StatusReport(
                run=run.name,
                state=run.state,
                groups=dict(await states(connection, run.run_id)),
                dead_letters=await count_messages(connection, run.run_id),
                stages=found,
                stall_causes=stall_causes(found, processes, limit),
                stuck=stuck(processes, limit),
                servers=[
                    f"the rollout server {server.url} serves nothing: {server.detail}"
                    for server in await reported_servers(connection, run.run_id)
                    if server.state is ServerState.FAILED and server.leased and server.detail
                ],
                drains=[
                    drainable
                    for drainable in await drainables(connection, run.run_id, limit)
                    if drainable.draining
                ],
                no_signal=await no_signal(connection, run.run_id),
                without_verdict=await without_verdict(connection, run.run_id),
                open_batch=await open_batch(connection, run.run_id, run_config.queue.batch_groups),
                failed_batches=await failed_batches(connection, run.run_id),
                processes=sum(not process.stopped for process in processes),
            )
    raise PenstockError(f"PostgreSQL has not answered within {PATIENCE_S:g} s")


def status(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show the processes, the unfinished work and what holds it up.

    Exit status 1: a named database does not answer; 3: nothing is running; 4: something is stuck or was given up."""
    from orchestrator.deploy.embedded.supervisor import read_status

    home = Home.at(config)
    resolved = home.config()
    supervised = read_status(home.layout)
    alive = supervised is not None and supervised.supervisor.alive
    run, problem = None, "no data pool is known here"
    if resolved.services.database_url:
        try:
            run = anyio.run(read_run, resolved)
        except PenstockError as error:
            problem = str(error)
        if run is None and not alive and _named(home):
            raise PenstockError(problem)
    given_up = [p for p in supervised.processes if p.state is ProcessState.FAILED] if supervised else []
    if as_json:
        shown = msgspec.to_builtins(supervised) if supervised is not None and alive else {}
        if run is not None:
            shown["run"] = run.plain()
        elif alive:
            shown["problem"] = problem
        typer.echo(json.dumps(shown))
    else:
        _show(supervised if alive else None, run, problem, home.option)
        for process in given_up:
            typer.echo(f"\n{process.name} was given up: {process.detail}")
    if not alive and run is None:
        raise typer.Exit(NOTHING)
    if given_up or (run is not None and (run.stall_causes or run.stuck)) or (run is None and alive):
        raise typer.Exit(STUCK)
    if not alive and run is not None and run.state is not RunState.ENDED and not run.processes:
        raise typer.Exit(NOTHING)


def _named(home: Home) -> bool:
    """Whether the file or the environment names the database. If not, a stopped database of this directory is normal."""
    from orchestrator.deploy.embedded.service_sources import Source
    from orchestrator.deploy.stack import services_of

    return services_of(home)[0].source is not Source.EMBEDDED


def _show(supervised: SupervisorStatus | None, run: StatusReport | None, problem: str, at: str = "") -> None:
    if supervised is None:
        typer.echo(f"nothing is running here; start it with: penstock up{at}")
    else:
        table = Table("process", "state", "pid", "restarts", "last exit")
        for process in supervised.processes:
            state = "GIVEN UP" if process.state is ProcessState.FAILED else process.state
            table.add_row(
                process.name, state, str(process.pid or ""), str(process.restarts), process.last_exit or ""
            )
        tables.print_table(table)
        for process in supervised.processes:
            if process.state is ProcessState.READY and process.detail:
                typer.echo(f"{process.name}: {plain(carried(process.detail))}")
    if run is None:
        if supervised is not None:
            typer.echo(f"the state of the run is unknown: {problem}")
        return
    groups = ", ".join(f"{n} {state}" for state, n in sorted(run.groups.items())) or "none yet"
    letters = f"; {run.dead_letters} dead messages" if run.dead_letters else ""
    typer.echo(f"run {run.run!r} is {run.state}; groups: {groups}{letters}")
    if run.groups.get(GroupState.DEAD) or run.dead_letters:
        typer.echo(f"what is dead, and why: penstock dead list{at}")
    table = Table("stage", "open", "oldest", "item", "why it waits")
    for stage in run.stages:
        if stage.open:
            stall_cause = run.stall_causes.get(stage.name)
            reason = f"STUCK: {stall_cause.sentence}" if stall_cause is not None else carried(stage.held)
            table.add_row(stage.name, str(stage.open), age(stage.oldest_s), stage.item, reason)
    if table.row_count:
        tables.print_table(table)
    if run.open_batch is not None and run.state is RunState.ACTIVE:
        publish = "" if table.row_count else f" (penstock tasks publish{at})"
        typer.echo(f"{run.open_batch.sentence}{publish}")
    elif not table.row_count and run.state is RunState.ACTIVE:
        typer.echo(f"nothing is unfinished: the run waits for tasks (penstock tasks publish{at})")
    if run.no_signal:
        typer.echo(f"NO SIGNAL: {run.no_signal}")
    if run.without_verdict:
        typer.echo(f"NO VERDICT: {carried(run.without_verdict)}")
    for sentence in [*run.failed_batches, *run.servers]:
        typer.echo(plain(carried(sentence)))
    for drainable in run.drains:
        typer.echo(drainable.sentence)
    named = {stall_cause.sentence for stall_cause in run.stall_causes.values()}
    for sentence in run.stuck:
        if sentence not in named:
            typer.echo(f"STUCK: {sentence}")


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(status)
