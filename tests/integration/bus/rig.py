"""NATS servers with a configuration of their own."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from orchestrator.bus.nats import NatsBus
from orchestrator.deploy.embedded.nats_server import find_nats
from orchestrator.deploy.embedded.ports import free_port


def served(directory: Path, more: dict[str, object]) -> Iterator[int]:
    """The port of a server with `more` keys in its configuration."""
    port, ready = free_port(), directory / "ports"
    ready.mkdir()
    configuration = {
        "listen": f"127.0.0.1:{port}",
        "server_name": f"n{port}",
        "jetstream": {"store_dir": str(directory / "store")},
        "ports_file_dir": str(ready),
        "max_payload": 8 << 20,
        **more,
    }
    (directory / "nats.conf").write_text(json.dumps(configuration, ensure_ascii=False))
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([find_nats().path, "-c", directory / "nats.conf"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        server.terminate()
        server.wait()


async def connects(url: str) -> None:
    async with NatsBus.connect(url, patience_s=60):
        pass
