"""NATS as it is rendered for hosts, on real servers: every one of them refuses a client without a login, and they are one cluster."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import nats
import nats.errors
import pytest
import yaml

from orchestrator.deploy.cluster.reading import read
from orchestrator.deploy.cluster.render import render
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.deploy.embedded.nats_server import find_nats
from orchestrator.deploy.embedded.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services]


def three(place: Path) -> Topology:
    """Three hosts of this machine's loopback."""
    return read(
        {
            "name": "login",
            "images": {"penstock": "penstock:1"},
            "shared": {"path": "/s", "model": "m"},
            "secrets": {
                "directory": str(place / "secrets"),
                "nats_url": {"name": "nats", "key": "url"},
                "nats_login": {"name": "nats", "key": "login"},
            },
            "hosts": [{"name": f"host{number}", "address": f"127.0.0.{number}"} for number in (1, 2, 3)],
            "nats": {
                "nodes": 3,
                "hosts": ["host[1-3]"],
                "port": free_port(),
                "cluster_port": free_port(),
                "monitor_port": free_port(),
                "store_gb": 1,
            },
            "bare": {"state": str(place / "state")},
            **{role: {"hosts": ["host1"]} for role in ("orchestrators", "gateways", "trainer", "web")},
            **{role: [{"hosts": ["host1"]}] for role in ("runners", "verifiers")},
            "servers": [{"hosts": ["host1"], "engine": "embedded", "gpus_per_node": 0}],
        }
    )


@contextmanager
def serving(place: Path, topology: Topology) -> Iterator[str]:
    """The servers, started as the README of the units describes; the URL of all other processes."""
    files = render(topology, "systemd")
    (place / "secrets" / "nats").mkdir(parents=True)
    lines = [
        line for line in files["README.md"].splitlines() if "token" in line and line.startswith("       ")
    ]
    assert len(lines) == 3
    subprocess.run(["bash", "-eu"], input="\n".join(lines).encode(), check=True)
    with ExitStack() as stack:
        for file, text in files.items():
            if not file.endswith(".conf"):
                continue
            name = Path(file).stem
            credentials = place / "run" / "credentials" / f"penstock-login-{name}.service"
            credentials.mkdir(parents=True)
            unit = files[f"{Path(file).parent}/penstock-login-{name}.service"]
            (loaded,) = [
                line.partition("=")[2] for line in unit.splitlines() if line.startswith("LoadCredential=")
            ]
            shutil.copy(loaded.partition(":")[2], credentials / loaded.partition(":")[0])
            conf = place / "etc" / "penstock" / "login" / f"{name}.conf"
            conf.parent.mkdir(parents=True, exist_ok=True)
            conf.write_text(text)
            log = stack.enter_context((place / f"{name}.log").open("wb"))
            server = subprocess.Popen([find_nats().path, "-c", conf], stdout=log, stderr=log)
            stack.callback(server.wait, 20)
            stack.callback(server.terminate)
        yield (place / "secrets" / "nats" / "url").read_text().strip()


def answered(host: str, port: int, login: str) -> str:
    """A server's answer to a client that connects with this login; empty while it does not listen."""
    try:
        with socket.create_connection((host, port), timeout=10) as client:
            client.sendall(f"CONNECT {{{login}}}\r\nPING\r\n".encode())
            answer = b""
            while not answer.endswith((b"PONG\r\n", b"Violation'\r\n")) and (more := client.recv(65536)):
                answer += more
            return answer.decode()
    except ConnectionRefusedError:
        return ""


async def test_rendered_servers_are_one_cluster_and_refuse_who_has_no_login(tmp_path: Path) -> None:
    topology = three(tmp_path)
    with serving(tmp_path, topology) as url, anyio.fail_after(60):
        for one in url.split(","):
            token, _, place = one.removeprefix("nats://").partition("@")
            host, _, port = place.partition(":")
            answer = await eventually(
                partial(answered, host, int(port), f'"auth_token":"{token}"'), every_s=0.05
            )
            assert "Authorization" not in answer
            for stranger in ("", '"auth_token":"other"', '"user":"penstock","pass":"other"'):
                assert "-ERR 'Authorization Violation'" in answered(host, int(port), stranger)
        client = await nats.connect(url.split(","), allow_reconnect=False)
        try:

            async def add() -> Any:
                with suppress(nats.errors.Error):
                    return await client.jetstream(timeout=2).add_stream(
                        name="S", subjects=["s"], num_replicas=3
                    )
                return None

            made = await eventually(add, lambda made: made is not None, every_s=0.1)  # they have a leader
        finally:
            await client.close()
        assert made.config.num_replicas == 3


def test_a_container_of_nats_has_the_login_at_the_place_that_its_configuration_includes(
    tmp_path: Path,
) -> None:
    files = render(three(tmp_path), "compose")
    service = yaml.safe_load(files["hosts/host2/compose.yaml"])["services"]["nats-1"]
    assert (
        service["secrets"] == ["nats.login"] and "./nats-1.conf:/etc/nats/nats.conf:ro" in service["volumes"]
    )
    assert 'include "../../run/secrets/nats.login"' in files["hosts/host2/nats-1.conf"]
    assert (
        "NATS requires a login" in files["README.md"] and "nats_url" not in files["hosts/host2/penstock.toml"]
    )
