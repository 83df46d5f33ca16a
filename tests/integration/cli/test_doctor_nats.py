"""When a real NATS syncs, by its monitoring port, and the report if that is not known."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
import anyio
import pytest

from orchestrator.deploy.cluster.doctor.bus import syncs
from orchestrator.deploy.embedded.nats_server import find_nats
from orchestrator.deploy.embedded.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services]


@contextmanager
def serving(conf: Path) -> Iterator["subprocess.Popen[bytes]"]:
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([find_nats().path, "-c", conf], stdout=quiet, stderr=quiet)
    try:
        yield server
    finally:
        server.terminate()
        server.wait(10)


@asynccontextmanager
async def monitored(place: Path, jetstream: str) -> AsyncIterator[str]:
    """A server's monitoring address."""
    url, conf = f"http://127.0.0.1:{free_port()}", place / "nats.conf"
    conf.write_text(
        f'listen: "127.0.0.1:{free_port()}"\nhttp: "{url.removeprefix("http://")}"\n{jetstream}\n'
    )
    with serving(conf) as server, anyio.fail_after(60):
        async with aiohttp.ClientSession() as session:

            async def healthy() -> bool:
                if server.poll() is not None:
                    return True
                with suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/healthz") as answer:
                        return answer.status == 200
                return False

            await eventually(healthy, every_s=0.05)
        assert server.poll() is None
        yield url


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("", "every 120 s; messages that a power cut destroys"),
        ("sync_interval: 15s", "every 15 s; messages that a power cut destroys"),
        ("sync_interval: always", "at every write"),
    ],
)
async def test_when_a_server_syncs_is_what_its_configuration_says(
    tmp_path: Path, setting: str, says: str
) -> None:
    settings = f'store_dir: "{tmp_path}"\n {setting}'
    async with monitored(tmp_path, f"jetstream {{\n {settings}\n}}") as url:
        found = await syncs(url)
    assert found.ok and found.detail.startswith(says)


async def test_what_a_server_does_not_say_is_not_known(tmp_path: Path) -> None:
    async with monitored(tmp_path, "") as url:  # without JetStream
        silent = await syncs(url)
    gone = await syncs(url)
    for found in (silent, gone):
        assert not found.ok and found.detail.startswith("not known: ") and found.fix
