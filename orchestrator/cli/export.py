"""penstock export: attempts and curves in the formats of other tools. The filters are the same for every format and are written once, here."""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.bar import progress
from orchestrator.cli.options import HERE, ID, ConfigOption, JsonOption, path
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from orchestrator.export.drive import Format
    from orchestrator.export.scalars import Drawer
    from orchestrator.queries.attempt_filters import AttemptFilters

app = typer.Typer(no_args_is_help=True)

OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="Directory to write: new, empty, or of the same export, which continues.",
        parser=path,
    ),
]


def _filters(
    rollout: Annotated[
        list[int] | None, typer.Option(parser=ID, metavar="ID", help="Only this rollout. Repeatable.")
    ] = None,
    group: Annotated[
        list[int] | None, typer.Option(parser=ID, metavar="ID", help="Only this group. Repeatable.")
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="Only train, eval or record.")] = None,
    label: Annotated[
        str | None, typer.Option(help='Only tasks that were submitted under this label; "": without one.')
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    scaffold: Annotated[str | None, typer.Option(help="Only groups that requested this scaffold.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only this state of the group (trained, scored …) or the rollout (verified, lost)."
        ),
    ] = None,
    versions: Annotated[
        str | None,
        typer.Option(help="Only attempts with tokens of these policy versions: 7, 3..9, 3.. or ..9."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only attempts that ended since a time (2026-01-31T12:00, UTC) or an age (90m, 12h, 2d)."
        ),
    ] = None,
    every_attempt: Annotated[
        bool, typer.Option("--every-attempt", help="Also attempts that were replaced by another one.")
    ] = False,
) -> "AttemptFilters":
    from orchestrator.queries.attempt_filters import AttemptFilters

    return AttemptFilters(
        rollouts=tuple(sorted(set(rollout))) if rollout else None,
        groups=tuple(sorted(set(group))) if group else None,
        purpose=purpose,
        label=label,
        domain=domain,
        scaffold=scaffold,
        state=state,
        versions=versions,
        since=since,
        every_attempt=every_attempt,
    )


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    """`command(wanted, …)` as a command with the options of `_filters` before its own."""
    filter_parameters = inspect.signature(_filters).parameters
    command_parameters = inspect.signature(command).parameters

    def run(**given: Any) -> None:
        command(_filters(**{name: given.pop(name) for name in filter_parameters}), **given)

    first = [parameter for name, parameter in command_parameters.items() if name != "wanted"]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in [*filter_parameters.values(), *first]
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@app.command()
@_filtered
def atif(
    wanted: "AttemptFilters",
    out: OutOption,
    config: ConfigOption = HERE,
    prompt_ids: Annotated[
        bool,
        typer.Option(help="Also the ids of each step's whole context: exact, and quadratic in the turns."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Write one ATIF trajectory (Harbor's JSON) per attempt: penstock export atif -c runs/first --out atif --purpose eval"""
    from orchestrator.export.atif import Atif

    _export(Home.at(config), Atif(prompt_ids), wanted, out, as_json)


@app.command("inspect")
@_filtered
def inspect_logs(
    wanted: "AttemptFilters", out: OutOption, config: ConfigOption = HERE, as_json: JsonOption = False
) -> None:
    """Write logs for Inspect View: penstock export inspect -c runs/first --out logs --purpose eval; then: inspect view --log-dir logs"""
    from orchestrator.export.inspect_log import Inspect

    _export(Home.at(config), Inspect(), wanted, out, as_json)


@app.command()
@_filtered
def parquet(
    wanted: "AttemptFilters",
    out: OutOption,
    config: ConfigOption = HERE,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also each step's whole context, as ids and as messages: quadratic in the turns."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write steps and trajectories for HF datasets: penstock export parquet -c runs/first --out data --state trained"""
    from orchestrator.export.parquet import Parquet

    _export(Home.at(config), Parquet(full), wanted, out, as_json)


@app.command()
@_filtered
def otlp(
    wanted: "AttemptFilters",
    out: OutOption,
    config: ConfigOption = HERE,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Collector that takes OTLP/HTTP, such as http://127.0.0.1:4318 (default: files in --out)."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Header of each request, such as Authorization=Bearer… Repeatable."),
    ] = None,
    content: Annotated[bool, typer.Option(help="Also messages, and arguments and results of tools.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write or send traces of the GenAI conventions: penstock export otlp -c runs/first --out sent --endpoint http://127.0.0.1:4318 --since 1h"""
    from orchestrator.export.otlp import Otlp
    from orchestrator.export.post import check_endpoint, check_header

    if endpoint is not None:
        check_endpoint(endpoint)
    elif header:
        raise ConfigurationError("--header is of requests to a collector: name it with --endpoint")
    headers: dict[str, str] = {}
    for each in header or ():
        name, separator, value = each.partition("=")
        if not separator:
            raise ConfigurationError(f"--header {quoted(each)} is not of the form name=value")
        check_header(name, value)
        if name.lower() in map(str.lower, headers):
            raise ConfigurationError(f"--header {quoted(name)} is given twice: give it one value")
        headers[name] = value
    _export(Home.at(config), Otlp(endpoint, headers=headers, content=content), wanted, out, as_json)


@app.command()
def tensorboard(out: OutOption, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Write curves of train steps and evaluations: penstock export tensorboard -c runs/first --out board; then: tensorboard --logdir board"""
    from orchestrator.export.tensorboard import TensorBoard

    _draw(Home.at(config), TensorBoard(), out, as_json)


@app.command()
def wandb(out: OutOption, config: ConfigOption = HERE, as_json: JsonOption = False) -> None:
    """Write the same curves as an offline run of W&B: penstock export wandb -c runs/first --out board; then: wandb sync board/wandb/offline-run-*"""
    from orchestrator.export.wandb import Wandb

    _draw(Home.at(config), Wandb(), out, as_json)


def _export(home: Home, form: "Format", wanted: "AttemptFilters", out: Path, as_json: bool) -> None:
    from orchestrator.export.drive import export

    with progress(f"export {form.name}") as tick:
        done = anyio.run(
            partial(_with_engine, home, lambda engine, run: export(engine, run, form, wanted, out, tick))
        )
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    note = " (it was complete before)" if done.already else ""
    if not done.attempts:
        note += ": no attempt that has ended matches the filters"
    typer.echo(
        f"{tables.counted(done.attempts, 'attempt')} with {tables.counted(done.steps, 'step')} of run {done.run!r}"
        f" in {tables.counted(done.parts, 'part')} in {out}{note}"
    )


def _draw(home: Home, drawer: "Drawer", out: Path, as_json: bool) -> None:
    from orchestrator.export.scalars import draw

    with progress(f"export {drawer.name}") as tick:
        done = anyio.run(
            partial(_with_engine, home, lambda engine, run: draw(engine, run, drawer, out, tick))
        )
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    note = " (it was complete before)" if done.already else ""
    typer.echo(
        f"{tables.counted(done.rows, 'row')} of {tables.counted(done.curves, 'curve')} of run {done.run!r} in {out}{note}"
    )


async def _with_engine(home: Home, work: Callable[[Any, str], Any]) -> Any:
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened

    config = home.reading()
    async with opened(config.services.database_url, Role.READER, name="penstock-export") as engine:
        return await work(engine, config.run.name)
