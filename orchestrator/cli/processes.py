"""One command per process, as a cluster starts them: orchestrator, gateway, runner, verifier; trainer and sft as subprocesses."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.cli.options import HERE, ConfigOption, SetOption
from orchestrator.home import Home
from orchestrator.log import configure

if TYPE_CHECKING:
    from orchestrator.flow.runner_settings import RunnerSettings


def _serve(process: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run until SIGTERM or SIGINT, then end cleanly."""
    configure(process)

    async def until_told() -> None:
        async with anyio.create_task_group() as tasks:

            async def obey() -> None:
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        tasks.cancel_scope.cancel()
                        return

            tasks.start_soon(obey)
            await work()
            tasks.cancel_scope.cancel()

    anyio.run(until_told, backend_options={"use_uvloop": True})


def owner(process: str) -> str:
    """Who holds a lease: host, process and pid."""
    return f"{socket.gethostname()}:{process}:{os.getpid()}"


def orchestrator(config: ConfigOption = HERE, overrides: SetOption = None) -> None:
    """The orchestrator: intake, admission, ingest, rewards, relay, reaper."""
    from orchestrator.app import orchestrate

    home = Home.at(config, tuple(overrides or ()))
    _serve("orchestrator", lambda: orchestrate(home.connected()))


def gateway(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    server: Annotated[list[str] | None, typer.Option(help="A rollout server's URL. Repeatable.")] = None,
) -> None:
    """The gateway: sessions, exact tokens, weight syncs."""
    from orchestrator.gateway.server import GatewaySettings, serve

    home = Home.at(config, tuple(overrides or ()))
    resolved = home.connected()
    settings = GatewaySettings(
        run=resolved.run.name,
        database_url=resolved.services.database_url,
        nats_url=resolved.services.nats_url,
        model=resolved.policy.model,
        servers=tuple(server or resolved.servers.urls),
        socket_path=home.gateway_socket,
        journal=home.journal("gateway"),
        secret_file=home.gateway_secret,
        url_file=home.gateway_url_file,
        config=resolved,
    )
    _serve("gateway", lambda: serve(settings))


def runner(config: ConfigOption = HERE, overrides: SetOption = None) -> None:
    """A runner: leases rollouts and runs scaffolds in sandboxes."""
    from orchestrator.flow.rollout_runner import serve_rollouts

    _serve("runner", lambda: serve_rollouts(_runner_settings(config, overrides, "runner")))


def verifier(config: ConfigOption = HERE, overrides: SetOption = None) -> None:
    """A verifier runner: grades finished rollouts in fresh sandboxes."""
    from orchestrator.flow.verify_runner import serve_verifications

    _serve("verifier", lambda: serve_verifications(_runner_settings(config, overrides, "verifier")))


def _runner_settings(config: Path, overrides: list[str] | None, process: str) -> "RunnerSettings":
    from orchestrator.flow.runner_settings import RunnerSettings

    home = Home.at(config, tuple(overrides or ()))
    resolved = home.connected()
    return RunnerSettings(
        run=resolved.run.name,
        database_url=resolved.services.database_url,
        nats_url=resolved.services.nats_url,
        gateway_url_file=home.gateway_url_file,
        gateway_secret=home.gateway_secret,
        gateway_socket=home.gateway_socket,
        journal=home.journal(process),
        owner=owner(process),
        config=resolved,
    )


def register(app: typer.Typer) -> None:
    """Add these commands to the root."""
    for command in (orchestrator, gateway, runner, verifier):
        app.command()(command)
    passed = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=passed, add_help_option=False)(trainer)
    app.command(context_settings=passed, add_help_option=False)(sft)


def trainer(context: typer.Context) -> None:
    """The trainer: claims batches, trains, publishes versions: penstock trainer --config runs/first --train-steps 10"""
    _torch("trainer", context.args)


def sft(context: typer.Context) -> None:
    """Supervised training on recorded trajectories: penstock sft --help"""
    _torch("trainer.sft", context.args)


def _torch(module: str, arguments: list[str]) -> None:
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    raise typer.Exit(subprocess.run([sys.executable, "-m", module, *arguments], env=env).returncode)
