"""Commands about a run as a whole: init, config, up, down, doctor, run end, reconcile."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.cli import steering, tables
from orchestrator.cli.bar import busy
from orchestrator.cli.configuration import config as show_config
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption, path
from orchestrator.cli.terminal import plain
from orchestrator.contracts.ids import NAME_RULE, is_name
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.embedded.process_spec import ProcessEvent
from orchestrator.deploy.home import Home, write_template
from orchestrator.runtime.run_option import run_option
from orchestrator.settings.config import Config, describe_ignored

err = Console(stderr=True, soft_wrap=True)


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write penstock.toml.", parser=path)] = HERE,
    name: Annotated[str, typer.Option(help="The run's name (default: the directory's).")] = "",
    model: Annotated[str, typer.Option(help="Hugging Face directory of the first policy.")] = "",
) -> None:
    """Write a penstock.toml: penstock init runs/first --model models/qwen3"""
    from orchestrator.deploy.preflight import check_model
    from orchestrator.settings.trainer import TrainerSection

    if model:
        check_model(Path(model), TrainerSection())
    file = write_template(directory, name, os.path.abspath(model) if model else "")
    typer.echo(str(file))
    directory_name = directory.resolve().name
    if not name and not is_name(directory_name):
        typer.echo(
            plain(
                f"the run is called 'default': {directory_name!r} cannot name a run ({NAME_RULE}); --name chooses another"
            ),
            err=True,
        )
    first = "" if model else "name a policy in it (policy.model), then: "
    typer.echo(
        f"a run of {file.parent.resolve()}; next: {first}penstock up{run_option(file.resolve())}", err=True
    )


def shown(event: ProcessEvent) -> Text:
    """The line of one event. Its detail may end with lines of the process's log: any text."""
    detail = f"  {plain(event.detail)}" if event.detail else ""
    return Text.assemble((event.name, "dim"), f" {event.state}{detail}")


def up(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    only: Annotated[str, typer.Option(help="Comma-separated processes to start (default: all).")] = "",
) -> None:
    """Start everything that is not configured elsewhere and keep it running: penstock up -c runs/first"""
    from orchestrator.deploy.embedded.service_sources import Source, Used, passed_over
    from orchestrator.deploy.no_effect import no_effect
    from orchestrator.deploy.preflight import sandbox_shortages
    from orchestrator.deploy.stack import PROCESSES, up

    home = Home.at(config, tuple(overrides or ()))
    wanted = tuple(part.strip() for part in only.split(",")) if only else PROCESSES
    unknown = [name for name in wanted if name not in PROCESSES]
    if unknown:
        raise ValueError(f"unknown process {quoted(unknown[0])}; known: {', '.join(PROCESSES)}")

    def show(event: ProcessEvent) -> None:
        err.print(shown(event), highlight=False)

    def on_config(resolved: Config) -> None:
        for warning in (*no_effect(resolved), *sandbox_shortages(resolved, wanted)):
            err.print(f"warning: {warning}", highlight=False, markup=False)

    def on_started(resolved: Config) -> None:
        err.print(
            f"run {resolved.run.name!r} is up; logs in {home.layout.logs}; stop with Ctrl-C or `penstock down{home.option}`",
            markup=False,
        )
        if ProcessRole.WEB in wanted:
            url = home.web_url_file.read_text(encoding="ascii").strip()
            err.print(f"dashboard: {url}", highlight=False, markup=False)

    def show_ignored(keys: list[str]) -> None:
        err.print(describe_ignored(keys), highlight=False, markup=False)

    def on_services(services: tuple[Used, Used]) -> None:
        own_nats = services[1].source is Source.EMBEDDED
        for line in (*map(str, services), *(passed_over() if own_nats else ())):
            err.print(line, highlight=False, markup=False)

    anyio.run(
        lambda: up(
            home,
            only=wanted,
            on_event=show,
            on_config=on_config,
            on_started=on_started,
            on_ignored_keys=show_ignored,
            on_services=on_services,
        )
    )


def down(config: ConfigOption = HERE) -> None:
    """Stop what `penstock up` started in this directory. The run can be continued."""
    from orchestrator.deploy.embedded.supervisor import stop_running

    stopped = anyio.run(stop_running, Home.at(config).layout)
    typer.echo("stopped" if stopped else "nothing was running")


def doctor(
    topology: Annotated[
        Path | None,
        typer.Argument(help="With --cluster: the topology that the run was rendered from.", parser=path),
    ] = None,
    as_json: JsonOption = False,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Check a run on several machines: its services, shared directory and network."
        ),
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Show the isolation that is in force in a sandbox.")
    ] = False,
    provider: Annotated[
        str, typer.Option(help="The sandbox provider to check (default: bubblewrap, or that of --config).")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The run whose services, slots and sandboxes are checked (default: the services that the environment names; with --cluster: here).",
            parser=path,
        ),
    ] = None,
    monitor: Annotated[
        list[str] | None,
        typer.Option(help="With --cluster: a monitoring address of NATS, http://HOST:8222. Repeatable."),
    ] = None,
    write_probe: Annotated[
        bool, typer.Option("--write-probe", help="With --cluster: only write a file to the shared directory.")
    ] = False,
    read_probe: Annotated[
        str, typer.Option(help="With --cluster: only look for the file that another host wrote.")
    ] = "",
) -> None:
    """Check what Penstock needs on this machine; each problem comes with the command that fixes it."""
    from orchestrator.cli import doctor_cluster
    from orchestrator.deploy.embedded.doctor import checks
    from orchestrator.deploy.stack import services_of
    from orchestrator.settings.timeouts import use

    if write_probe or read_probe:
        doctor_cluster.probe(config or HERE, read_probe)
        return
    if cluster:
        doctor_cluster.check(config or HERE, topology, tuple(monitor or ()), provider, as_json)
        return
    if sandbox:
        _isolation(provider, config, as_json)
        return
    if config is None:
        found = checks()
    else:
        home = Home.at(config)
        with use(home.config().timeouts):
            found = checks(home.layout.root, services_of(home))
    warnings = [] if config is None else _warnings(config)
    if as_json:
        listed = [{"name": c.name, "ok": c.ok, "detail": c.detail, "fix": c.fix} for c in found]
        listed += [
            {"name": name, "ok": True, "detail": f"warning: {warning}", "fix": ""}
            for name, warning in warnings
        ]
        typer.echo(json.dumps(listed, indent=2))
    else:
        table = Table("check", "", "detail", "fix")
        for check in found:
            table.add_row(
                check.name, "ok" if check.ok else "MISSING", check.detail, "" if check.ok else check.fix or ""
            )
        tables.print_table(table)
        for _, warning in warnings:
            typer.echo(f"warning: {warning}")
    if not all(check.ok for check in found):
        raise typer.Exit(1)


def _warnings(directory: Path) -> list[tuple[str, str]]:
    """Sandbox requirements of a run that this machine lacks, and keys without effect, as sentences with their subject."""
    from orchestrator.cli.run_config import recorded
    from orchestrator.contracts.errors import ConfigurationError
    from orchestrator.deploy.no_effect import no_effect
    from orchestrator.deploy.preflight import sandbox_shortages
    from orchestrator.settings.timeouts import use

    file_config = Home.at(directory).config()
    try:
        with use(file_config.timeouts):
            in_force = recorded(file_config).config(file_config)
            found = [("sandboxes", each) for each in sandbox_shortages(in_force)]
            return found + [("configuration", each) for each in no_effect(in_force)]
    except ConfigurationError as error:
        # The file and the run contradict each other: `penstock up` refuses that.
        return [("sandboxes", str(error))]


def _isolation(provider: str, config: Path | None, as_json: bool) -> None:
    from orchestrator.runtime import plugins
    from orchestrator.settings.providers import tables
    from orchestrator.settings.sandbox import SandboxSection
    from sandboxes.base import SandboxError
    from sandboxes.bubblewrap import BubblewrapProvider
    from sandboxes.effective import observe
    from sandboxes.images.ability import abilities

    section = SandboxSection() if config is None else Home.at(config).config().sandbox
    provider = provider or section.provider
    opened = plugins.provider(provider, tables(section))
    try:
        found = anyio.run(observe, opened)
    except SandboxError as error:
        raise ValueError(f"the sandbox {provider} cannot be looked into: {error}") from error
    sections = dict(found.sections)
    if isinstance(opened, BubblewrapProvider):
        sections["images"] = abilities(opened.images)
    if as_json:
        typer.echo(json.dumps({"provider": found.provider, **sections, "concerns": found.concerns}, indent=2))
    else:
        for title, rows in sections.items():
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
    """Publish again the messages that the workers' streams must hold. Harmless if nothing is missing."""
    from orchestrator.app import open_context
    from orchestrator.roles.rebuild import REBUILT, rebuild
    from orchestrator.settings.timeouts import use

    resolved = Home.at(config).connected()

    async def work() -> dict[str, int]:
        async with open_context(resolved) as context:
            await context.bus.ensure_streams()
            return {stream: await rebuild(context, stream) for stream in REBUILT}

    with busy("reconcile"), use(resolved.timeouts):
        republished = anyio.run(work)
    for stream, messages in republished.items():
        typer.echo(f"{stream}: {messages} messages owed")


def env(config: ConfigOption = HERE) -> None:
    """Print the services of a run as shell exports: eval "$(penstock env -c runs/first)" """
    from orchestrator.bus.link import urls_of
    from orchestrator.pool.address import address_of

    services = Home.at(config).connected().services
    address = address_of(services.database_url)
    bus = ",".join(urls_of(services.nats_url))  # for any NATS client
    if address.without_libpq:
        typer.echo(
            f"DATABASE_URL is printed without {' and '.join(address.without_libpq)}, which psql and pg_dump refuse: "
            "commands of Penstock need it, so do not use this line for them",
            err=True,
        )
    # The URL is for psql and pg_dump too.
    typer.echo(f"export DATABASE_URL={shlex.quote(address.url)}\nexport NATS_URL={shlex.quote(bus)}")


def end(
    config: ConfigOption = HERE,
    reason: Annotated[str, typer.Option(help="Recorded with the run.")] = "requested by a person",
) -> None:
    """End the run: no more intake; groups that are not trained yet become filtered(run_ended). Stopping `penstock up` does not end it."""
    from orchestrator.pool.opened import opened_run
    from orchestrator.pool.runs import begin_end
    from orchestrator.pool.transact import once

    resolved = Home.at(config).connected()

    async def work() -> bool:
        async with opened_run(resolved, name="penstock-run") as (engine, run):
            return await once(
                engine, lambda connection: begin_end(connection, run.run_id, reason), at="person.commit"
            )

    typer.echo("the run is ending" if anyio.run(work) else "the run was ending already")


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    app.command()(init)
    app.command("config")(show_config)
    for command in (env, up, down, doctor, reconcile):
        app.command()(command)
    run = typer.Typer(no_args_is_help=True, help="End, pause and steer the run.")
    run.command()(end)
    steering.register(run)
    app.add_typer(run, name="run")
