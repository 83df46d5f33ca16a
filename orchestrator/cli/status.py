"""`penstock status`: the supervised processes, what is unfinished and how old it is, and who holds it up."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import typer
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.options import HERE, ConfigOption, JsonOption
from orchestrator.config import Config, as_kept
from orchestrator.contracts.errors import PenstockError
from orchestrator.embedded.process_spec import ProcessState, SupervisorStatus
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.pool.culprits import Culprit
    from orchestrator.pool.draining import Drainable
    from orchestrator.pool.stages import Stage

NOTHING, STUCK = 3, 4  # exit statuses
PATIENCE_S = 5.0


@dataclass(frozen=True)
class RunStatus:
    """What the data pool says about a run. `culprits` are by stage; `stuck` are sentences about loops and processes; `drains`: what is asked to
    take nothing new."""

    run: str
    state: str
    groups: dict[str, int]
    dead_letters: int
    stages: "list[Stage]"
    culprits: "dict[str, Culprit]"
    stuck: list[str]
    drains: "list[Drainable]"

    def plain(self) -> dict[str, Any]:
        """For machines."""
        stages = []
        for stage in self.stages:
            culprit = self.culprits.get(stage.name)
            shown = asdict(stage)
            if culprit is not None:
                shown["culprit"] = {
                    "process": culprit.process,
                    "loop": culprit.loop,
                    "item": culprit.item,
                    "waits_for": culprit.waits_for,
                    "seconds": culprit.seconds,
                    "sentence": culprit.sentence,
                }
            stages.append(shown)
        drains = [
            {"kind": one.kind, "id": one.id, "state": one.state, "left": one.left} for one in self.drains
        ]
        return {**asdict(self), "stages": stages, "culprits": sorted(self.culprits), "drains": drains}


async def read_run(config: Config) -> RunStatus:
    """Ask the data pool. PenstockError, one sentence, when it does not answer."""
    from sqlalchemy import func, select

    from orchestrator.flow.dispatcher import queue_settings
    from orchestrator.pool.culprits import culprits, eased, stuck
    from orchestrator.pool.draining import drainables
    from orchestrator.pool.engine import Role, check_revision, open_engine
    from orchestrator.pool.presence import present
    from orchestrator.pool.runs import get_run
    from orchestrator.pool.stages import stages, states
    from orchestrator.pool.tables import dead_letters

    url, limit = config.services.database_url, config.watchdog.no_progress_s
    with anyio.move_on_after(PATIENCE_S):
        async with (
            open_engine(url, Role.READER, size=1, name="penstock-status") as engine,
            engine.connect() as connection,
        ):
            await check_revision(connection)
            run = await get_run(connection, config.run.name)
            kept = as_kept(run.config, config)
            processes = await present(connection, run.run_id)
            found = eased(await stages(connection, run.run_id, kept, queue_settings(kept)), processes)
            letters = select(func.count()).where(dead_letters.c.run_id == run.run_id)
            return RunStatus(
                run.name,
                run.state,
                dict(await states(connection, run.run_id)),
                int(await connection.scalar(letters) or 0),
                found,
                culprits(found, processes, limit),
                stuck(processes, limit),
                [one for one in await drainables(connection, run.run_id, limit) if one.draining],
            )
    raise PenstockError(f"PostgreSQL has not answered within {PATIENCE_S:g} s")


def status(config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Show the processes, what is unfinished, and who holds it up. Exit status 3: nothing is running; 4: something is stuck or was given up."""
    from orchestrator.embedded.supervisor import read_status

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
    given_up = [p for p in supervised.processes if p.state is ProcessState.FAILED] if supervised else []
    if as_json:
        shown = msgspec.to_builtins(supervised) if supervised is not None and alive else {}
        if run is not None:
            shown["run"] = run.plain()
        elif alive:
            shown["problem"] = problem
        typer.echo(json.dumps(shown))
    else:
        _show(supervised if alive else None, run, problem)
        for process in given_up:
            typer.echo(f"\n{process.name} was given up: {process.detail}")
    if not alive and run is None:
        raise typer.Exit(NOTHING)
    if given_up or (run is not None and (run.culprits or run.stuck)) or (run is None and alive):
        raise typer.Exit(STUCK)


def _show(supervised: SupervisorStatus | None, run: RunStatus | None, problem: str) -> None:
    if supervised is None:
        typer.echo("nothing is running here; start it with: penstock up")
    else:
        table = Table("process", "state", "pid", "restarts", "last exit")
        for process in supervised.processes:
            state = "GIVEN UP" if process.state is ProcessState.FAILED else process.state
            table.add_row(
                process.name, state, str(process.pid or ""), str(process.restarts), process.last_exit or ""
            )
        tables.print_table(table)
    if run is None:
        if supervised is not None:
            typer.echo(f"what the run is doing cannot be told: {problem}")
        return
    groups = ", ".join(f"{n} {state}" for state, n in sorted(run.groups.items())) or "none yet"
    letters = f"; {run.dead_letters} dead messages" if run.dead_letters else ""
    typer.echo(f"run {run.run!r} is {run.state}; groups: {groups}{letters}")
    if run.groups.get("dead") or run.dead_letters:
        typer.echo("what is dead, and why: penstock dead list")
    table = Table("stage", "open", "oldest", "item", "why it waits")
    for stage in run.stages:
        if stage.open:
            culprit = run.culprits.get(stage.name)
            why = f"STUCK: {culprit.sentence}" if culprit is not None else stage.held
            table.add_row(stage.name, str(stage.open), age(stage.oldest_s), stage.item, why)
    if table.row_count:
        tables.print_table(table)
    elif run.state == "active":
        typer.echo("nothing is unfinished: the run waits for tasks (penstock tasks publish)")
    for one in run.drains:
        typer.echo(one.sentence)
    named = {culprit.sentence for culprit in run.culprits.values()}
    for sentence in run.stuck:
        if sentence not in named:
            typer.echo(f"STUCK: {sentence}")


def age(seconds: float) -> str:
    """Seconds for people.

    >>> age(0.4), age(75), age(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(status)
