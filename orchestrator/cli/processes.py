"""One command per process, as a cluster starts them: orchestrator, gateway, runner, verifier, web (and trainer.py)."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli.options import HERE, ConfigOption, SetOption, path
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.http_urls import check_http_urls
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home
from orchestrator.runtime.ending import ended_by_signal
from orchestrator.runtime.log import configure
from orchestrator.runtime.metrics import measuring, served
from orchestrator.runtime.unreachable import AddressOrigin, of_directory, remember
from orchestrator.runtime.watchdog import WatchdogSettings, watching
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import use

if TYPE_CHECKING:
    from orchestrator.runner.worker import WorkerSettings


MAX_NAME_LENGTH = 64  # characters of a process's name: a row and its files have it


def _serve(process: str, home: Home, work: Callable[[], Awaitable[None]]) -> None:
    """Run under a watchdog until SIGTERM, SIGINT or SIGHUP, then end cleanly."""
    configure(process)
    config = home.config()
    section, target = config.watchdog, home.target(process, config)
    watchdog = WatchdogSettings(section.no_progress_s, section.lag_s, home.metrics(process))

    async def until_signalled() -> None:
        async with ended_by_signal():
            with measuring() as process_metrics, watching(process, watchdog) as process_watch:
                process_metrics.registry.register(process_watch.registry)
                with served(process_metrics.registry, target):
                    await work()

    anyio.run(until_signalled, backend_options={"use_uvloop": True})


def _by_clock(home: Home, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """`work` under the configured clock."""

    async def timed() -> None:
        with use(home.config().timeouts):
            await work()

    return timed


def _short(name: str) -> str:
    """Parser of `--name`."""
    if not name or len(name) > MAX_NAME_LENGTH:
        raise typer.BadParameter(
            f"{quoted(name)} is not a name for a process: write 1 to {MAX_NAME_LENGTH} characters"
        )
    return name


def _of_kind(kind: str) -> Callable[[str], str]:
    """Parser of `--name`: the prefix of a name gives the kind of the process."""

    def read(name: str) -> str:
        _short(name)
        if name.partition("-")[0] != kind:
            raise typer.BadParameter(
                f"{quoted(name)} is not a name for a process of this kind: use {kind}, or {kind}-2"
            )
        return name

    return read


def orchestrator(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    name: Annotated[
        str,
        typer.Option(
            help="This orchestrator's name, unique per host and run.", parser=_of_kind("orchestrator")
        ),
    ] = "orchestrator",
) -> None:
    """Run the orchestrator: intake, admission, ingest, rewards, relay, reaper."""
    from orchestrator.app import orchestrate

    home = Home.at(config, tuple(overrides or ()))
    _serve(name, home, _by_clock(home, lambda: orchestrate(home.connected())))


def gateway(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    server: Annotated[list[str] | None, typer.Option(help="A rollout server's URL. Repeatable.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port (default: gateway.port).")] = 0,
    own_servers: Annotated[
        bool,
        typer.Option(
            "--own-servers",
            help="The rollout servers run as this user on this machine; a program of another user gets no request.",
            hidden=True,
        ),
    ] = False,
    name: Annotated[
        str, typer.Option(help="This gateway's name, unique per host and run.", parser=_of_kind("gateway"))
    ] = "gateway",
) -> None:
    """Run a gateway: sessions, exact tokens, weight syncs."""
    from orchestrator.gateway.server import GatewaySettings, serve

    _check_urls("--server", server, "a rollout server")
    home = Home.at(config, tuple(overrides or ()))
    resolved = home.connected()
    settings = GatewaySettings(
        run=resolved.run.name,
        database_url=resolved.services.database_url,
        nats_url=resolved.services.nats_url,
        model_dir=Path(resolved.policy.model),
        server_urls=tuple(server or resolved.servers.urls),
        host=resolved.gateway.host,
        port=port or resolved.gateway.port,
        socket_path=home.gateway_socket,
        journal_dir=home.journal("gateway"),
        admin_secret_file=home.gateway_secret,
        server_key_file=home.server_key,
        servers_user=os.getuid() if own_servers else None,
        url_file=home.gateway_url_file,
        config=resolved,
    )
    _serve(name, home, _by_clock(home, lambda: serve(settings)))


def runner(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            help="A gateway's URL (default: gateway.urls, else the gateway on this host). Repeatable, for gateways on other hosts."
        ),
    ] = None,
    gateway_socket: Annotated[
        Path | None,
        typer.Option(
            help="The Unix socket of a gateway on this host, as sandboxes see it (default: that of the running one).",
            parser=path,
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="This runner's name, unique per host and run.", parser=_short)
    ] = "runner",
) -> None:
    """Run a runner: it leases rollouts and runs scaffolds in sandboxes."""
    from orchestrator.runner.rollout_runner import RunnerSettings, serve_rollouts

    _check_urls("--gateway", gateway, "a gateway")
    home = Home.at(config, tuple(overrides or ()))
    named = tuple(gateway or home.config().gateway.urls)
    if home.gateway_url_file.exists() and named == (_read(home.gateway_url_file),):
        named = ()  # the gateway of this directory, found by its name
    if gateway_socket is not None and len(named) > 1:
        raise ConfigurationError(
            f"--gateway-socket belongs to one gateway on this host, and {len(named)} are named: leave it out"
        )
    for url in gateway or ():
        remember(url, AddressOrigin("--gateway", "correct that option"))
    first, *other_gateways = named or (
        remember(_read(home.gateway_url_file), of_directory(home.file.parent)),
    )
    settings = RunnerSettings(
        worker=_worker(home, name, lambda resolved: resolved.rollout.slots),
        gateway_url=first,
        gateway_secret=home.gateway_secret,
        gateway_socket=gateway_socket if named else gateway_socket or home.gateway_socket,
        others=tuple(other_gateways),
    )
    _serve(name, home, _by_clock(home, lambda: serve_rollouts(settings)))


def verifier(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    name: Annotated[
        str, typer.Option(help="This verifier runner's name, unique per host and run.", parser=_short)
    ] = "verifier",
) -> None:
    """Run a verifier runner: it grades finished rollouts in fresh sandboxes."""
    from orchestrator.runner.verify_runner import serve_verifications

    home = Home.at(config, tuple(overrides or ()))
    settings = _worker(home, name, lambda resolved: resolved.rollout.verify_slots)
    _serve(name, home, _by_clock(home, lambda: serve_verifications(settings)))


def web(config: ConfigOption = HERE, overrides: SetOption = None) -> None:
    """Run the dashboard and print its URL with the access token: penstock web -c runs/first"""
    from orchestrator.web.server import WebSettings, serve

    home = Home.at(config, tuple(overrides or ()))
    resolved = home.config()
    if not resolved.services.database_url:
        raise ConfigurationError(
            f"no data pool is known here: run `penstock up{home.option}`, or set DATABASE_URL"
        )
    section = resolved.web
    settings = WebSettings(
        config=resolved,
        token_file=home.web_token,
        url_file=home.web_url_file,
        host=section.host,
        port=section.port,
        hosts=section.hosts,
        layout=home.layout,
        announce=lambda url: typer.echo(f"dashboard: {url}", err=True) if sys.stderr.isatty() else None,
    )
    _serve("web", home, _by_clock(home, lambda: serve(settings)))


def _check_urls(option: str, urls: list[str] | None, what: str) -> None:
    try:
        check_http_urls(urls or (), what)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _worker(home: Home, name: str, slots: Callable[[Config], int]) -> "WorkerSettings":
    from orchestrator.runner.worker import WorkerSettings

    resolved = home.connected()
    return WorkerSettings(
        run=resolved.run.name,
        database_url=resolved.services.database_url,
        nats_url=resolved.services.nats_url,
        journal=home.journal(name),
        provider=resolved.sandbox.provider,
        slots=slots(resolved),
        owner=f"{home.workers}{name}",
        config=resolved,
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise ConfigurationError(
            "no gateway runs here: start `penstock gateway` first, or name one with --gateway"
        ) from None


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    for command in (orchestrator, gateway, runner, verifier, web):
        app.command()(command)
