"""Commands about a run as a whole: init, config, up, down, doctor, run end, reconcile."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli import tables
from orchestrator.cli.bar import busy
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption
from orchestrator.config import Config
from orchestrator.embedded.process_spec import ProcessEvent
from orchestrator.home import Home, write_template

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

err = Console(stderr=True, soft_wrap=True)


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write penstock.toml.")] = HERE,
    name: Annotated[str, typer.Option(help="The run's name (default: the directory's).")] = "",
    model: Annotated[str, typer.Option(help="Hugging Face directory of the first policy.")] = "",
) -> None:
    """Write a penstock.toml: penstock init runs/first --model models/qwen3"""
    from orchestrator.preflight import check_model

    if model:
        check_model(Path(model))
    file = write_template(directory, name, model)
    typer.echo(str(file))
    at = "" if file.parent.resolve() == Path.cwd() else f" -c {shlex.quote(str(file.parent))}"
    first = "" if model else "name a policy in it (policy.model), then: "
    typer.echo(f"a run of {file.parent.resolve()}; next: {first}penstock up{at}", err=True)


def config(config: ConfigOption = HERE, overrides: SetOption = None) -> None:
    """Print the resolved configuration as JSON."""
    from orchestrator.plugins import names
    from orchestrator.preflight import check_config

    resolved = Home.at(config, tuple(overrides or ())).config()
    check_config(resolved, names("scaffolds"))
    typer.echo(json.dumps(resolved.to_json(), indent=2))


def up(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    only: Annotated[str, typer.Option(help="Comma-separated processes to start (default: all).")] = "",
) -> None:
    """Start everything that is not configured elsewhere, and keep it alive: penstock up -c runs/first"""
    from orchestrator.stack import PROCESSES, up

    home = Home.at(config, tuple(overrides or ()))
    wanted = tuple(part.strip() for part in only.split(",")) if only else PROCESSES
    unknown = [name for name in wanted if name not in PROCESSES]
    if unknown:
        raise ValueError(f"unknown process {unknown[0]!r}; known: {', '.join(PROCESSES)}")

    def show(event: ProcessEvent) -> None:
        detail = f"  {event.detail}" if event.detail else ""
        err.print(f"[dim]{event.name}[/dim] {event.state}{detail}", highlight=False)

    def started(resolved: Config) -> None:
        err.print(
            f"run {resolved.run.name!r} is up; logs in {home.layout.logs}; stop with Ctrl-C or `penstock down`"
        )
        if "web" in wanted:
            url = home.web_url_file.read_text(encoding="ascii").strip()
            err.print(f"dashboard: {url}", highlight=False, markup=False)

    def kept(keys: list[str]) -> None:
        err.print(
            f"this run keeps the values that it began with of: {', '.join(keys)}; a new run.name begins a new run",
            highlight=False,
        )

    anyio.run(lambda: up(home, only=wanted, on_event=show, started=started, kept=kept))


def down(config: ConfigOption = HERE) -> None:
    """Stop what `penstock up` started in this directory. The run can be continued."""
    from orchestrator.embedded.supervisor import stop_running

    stopped = anyio.run(stop_running, Home.at(config).layout)
    typer.echo("stopped" if stopped else "nothing was running")


def doctor(
    topology: Annotated[
        Path | None, typer.Argument(help="With --cluster: the topology that the run was rendered from.")
    ] = None,
    as_json: JsonOption = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Look at a run on several machines: its services, directory, reach."),
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Show the isolation that is really in force in a sandbox.")
    ] = False,
    provider: Annotated[
        str, typer.Option(help="The sandbox provider to look at (default: bubblewrap, or that of --config).")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="With --sandbox or --cluster: the run (default of --cluster: here)."
        ),
    ] = None,
    monitor: Annotated[
        list[str] | None,
        typer.Option(help="With --cluster: a monitoring address of NATS, http://HOST:8222. Repeatable."),
    ] = None,
    write_probe: Annotated[
        bool, typer.Option("--write-probe", help="With --cluster: only leave a file in the shared directory.")
    ] = False,
    read_probe: Annotated[
        str, typer.Option(help="With --cluster: only look for the file that another host left.")
    ] = "",
) -> None:
    """Check what Penstock needs on this machine; each problem with the command that mends it."""
    from orchestrator.cli import doctor_cluster
    from orchestrator.embedded.doctor import checks

    if not cluster and (topology or monitor or write_probe or read_probe):
        raise ValueError("a topology, --monitor and the probes belong to penstock doctor --cluster")
    if write_probe or read_probe:
        doctor_cluster.probe(config or HERE, read_probe)
        return
    if cluster:
        doctor_cluster.look(config or HERE, topology, tuple(monitor or ()), provider, as_json)
        return
    if sandbox:
        _isolation(provider, config, as_json)
        return
    found = checks()
    if as_json:
        typer.echo(
            json.dumps(
                [{"name": c.name, "ok": c.ok, "detail": c.detail, "fix": c.fix} for c in found], indent=2
            )
        )
    else:
        table = Table("check", "", "detail", "fix")
        for check in found:
            table.add_row(
                check.name, "ok" if check.ok else "MISSING", check.detail, "" if check.ok else check.fix or ""
            )
        tables.print_table(table)
    if not all(check.ok for check in found):
        raise typer.Exit(1)


def _isolation(provider: str, config: Path | None, as_json: bool) -> None:
    from orchestrator import plugins
    from orchestrator.config import SandboxSection
    from orchestrator.providers import tables
    from sandboxes.base import SandboxError
    from sandboxes.effective import observe

    section = SandboxSection() if config is None else Home.at(config).config().sandbox
    provider = provider or section.provider
    try:
        found = anyio.run(observe, plugins.provider(provider, tables(section)))
    except SandboxError as error:
        raise ValueError(f"the sandbox {provider} cannot be looked into: {error}") from error
    if as_json:
        typer.echo(
            json.dumps({"provider": found.provider, **found.sections, "concerns": found.concerns}, indent=2)
        )
    else:
        for title, rows in found.sections.items():
            typer.echo(title)
            for name, value in rows:
                typer.echo(f"  {name:<28} {value}")
        for concern in found.concerns:
            typer.echo(f"CONCERN: {concern}")
        if not found.concerns:
            typer.echo(f"{found.provider}: nothing of the above isolates less than it should")
    if found.concerns:
        raise typer.Exit(1)


def reconcile(config: ConfigOption = HERE) -> None:
    """Publish again what the streams towards workers must hold. Harmless when nothing is missing."""
    from orchestrator.app import open_flow
    from orchestrator.flow.rebuild import REBUILT, rebuild

    async def work() -> dict[str, int]:
        async with open_flow(Home.at(config).connected()) as flow:
            await flow.bus.ensure_streams()
            return {stream: await rebuild(flow, stream) for stream in REBUILT}

    with busy("reconcile"):
        owed = anyio.run(work)
    for stream, messages in owed.items():
        typer.echo(f"{stream}: {messages} messages owed")


def env(config: ConfigOption = HERE) -> None:
    """Print the services of a run as shell exports: eval "$(penstock env -c runs/first)" """
    services = Home.at(config).connected().services
    typer.echo(
        f"export DATABASE_URL={shlex.quote(services.database_url)}\nexport NATS_URL={shlex.quote(services.nats_url)}"
    )


def end(
    config: ConfigOption = HERE,
    reason: Annotated[str, typer.Option(help="Recorded with the run.")] = "asked by a person",
) -> None:
    """End the run: no more intake; what is not trained yet becomes filtered(run_ended). Stopping `penstock up` does not end it."""
    from orchestrator.pool.engine import open_engine
    from orchestrator.pool.runs import begin_end, get_run
    from orchestrator.pool.transact import once

    resolved = Home.at(config).connected()

    async def work() -> bool:
        async def asked(connection: "AsyncConnection") -> bool:
            run = await get_run(connection, resolved.run.name)
            return await begin_end(connection, run.run_id, reason)

        async with open_engine(resolved.services.database_url, size=1) as engine:
            return await once(engine, asked, at="person.commit")

    typer.echo("the run is ending" if anyio.run(work) else "the run was ending already")


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    for command in (init, config, env, up, down, doctor, reconcile):
        app.command()(command)
    run = typer.Typer(no_args_is_help=True, help="The run itself.")
    run.command()(end)
    app.add_typer(run, name="run")
