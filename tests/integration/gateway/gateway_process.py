"""A gateway as a process of its own, on the services and settings of a rig, for a test that kills it."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio

from orchestrator.bus.nats import NatsBus
from orchestrator.gateway.server import Gateway, GatewaySettings
from orchestrator.gateway_client import GatewayAdmin
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.runtime.log import configure
from orchestrator.settings.config import Config
from tests.waiting import eventually

if TYPE_CHECKING:  # the process needs no torch
    from tests.integration.gateway.rig import Rig

START_S = 60.0


def settings_in(rig: "Rig", directory: Path) -> GatewaySettings:
    """Those of the rig's gateway, with files in `directory`: the same gateway again, or another one of the run."""
    return replace(
        rig.settings,
        socket_path=directory / "socket" / "gateway.sock",
        journal_dir=directory / "journal",
        admin_secret_file=directory / "admin-secret",
        url_file=directory / "url",
    )


@asynccontextmanager
async def gateway_process(
    rig: "Rig", directory: Path
) -> AsyncIterator[tuple[GatewayAdmin, "subprocess.Popen[bytes]"]]:
    """A process that answers, killed with the context at the latest; on a `directory` that a gateway left, its successor."""
    async with gateway_at(settings_in(rig, directory), prefix=rig.run) as started:
        yield started


@asynccontextmanager
async def gateway_at(
    settings: GatewaySettings, *, prefix: str
) -> AsyncIterator[tuple[GatewayAdmin, "subprocess.Popen[bytes]"]]:
    """As `gateway_process`, from whole settings, on the streams that `prefix` names. All its files lie next to its journal."""
    directory = settings.journal_dir.parent
    given = {
        "run": settings.run,
        "prefix": prefix,
        "config": settings.config.to_json(),
        "model": str(settings.model_dir),
        "servers": list(settings.server_urls),
        "directory": str(directory),
        "database_url": settings.database_url,
        "nats_url": settings.nats_url,
    }
    process = _begin(json.dumps(given))
    try:
        async with GatewayAdmin(await _url(settings, process), _secret(settings)) as admin:
            yield admin, process
    finally:
        process.kill()
        process.wait()


def _begin(given: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "tests.integration.gateway.gateway_process", given])


async def _url(settings: GatewaySettings, process: "subprocess.Popen[bytes]") -> str:
    assert settings.url_file is not None
    file = settings.url_file
    async with aiohttp.ClientSession() as http:

        async def healthy() -> str:
            assert process.poll() is None, "the gateway ended"
            with suppress(FileNotFoundError, aiohttp.ClientError):
                url = file.read_text().strip()
                async with http.get(f"{url}/health") as answer:
                    return url if answer.status == 200 else ""
            return ""

        return await eventually(healthy, within_s=START_S, every_s=0.05)


def _secret(settings: GatewaySettings) -> str:
    return settings.admin_secret_file.read_text().strip()


async def serve(given: dict[str, Any]) -> None:
    """The work of the process."""
    directory = Path(given["directory"])
    settings = GatewaySettings(
        run=given["run"],
        config=Config.from_json(given["config"]),
        model_dir=Path(given["model"]),
        server_urls=tuple(given["servers"]),
        socket_path=directory / "socket" / "gateway.sock",
        journal_dir=directory / "journal",
        admin_secret_file=directory / "admin-secret",
        url_file=directory / "url",
    )
    async with (
        open_engine(given["database_url"], Role.GATEWAY) as engine,
        NatsBus.connect(given["nats_url"], prefix=given["prefix"]) as bus,
    ):
        async with engine.connect() as connection:
            run = await get_run(connection, settings.run)
        async with Gateway.open(settings, engine, bus, run.run_id):
            await anyio.sleep_forever()


if __name__ == "__main__":
    configure("gateway")
    anyio.run(serve, json.loads(sys.argv[1]))
