"""The embedded NATS server: starting, dying, starting again, and being refused."""

import os
import shutil
import signal
import stat
import sys
from pathlib import Path

import anyio
import nats
import pytest

from orchestrator.bus.link import urls_of
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats import EmbeddedNats, check_server
from orchestrator.deploy.embedded.nats_server import (
    find_nats,
    parse_version,
    prepare_nats,
    recorded_nats_url,
    unusable_nats,
)
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.deploy.embedded.service_specs import nats_spec
from orchestrator.deploy.embedded.spawn import reap, spawn
from orchestrator.deploy.embedded.supervisor import Supervisor
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def published(url: str, stream: str) -> int:
    client = await nats.connect(url)
    try:
        info = await client.jetstream().stream_info(stream)
        return int(info.state.messages)
    finally:
        await client.close()


async def test_it_keeps_its_streams_and_its_url_over_a_restart(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path / "nats") as server:
        first = server.url
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
        await client.jetstream().publish("kept.one", b"x" * (2 * 1024 * 1024))
        assert client.max_payload == 8 * 1024 * 1024
        await client.close()
    async with EmbeddedNats(tmp_path / "nats") as server:
        recorded = recorded_nats_url(tmp_path / "nats")
        assert recorded is not None and [server.url] == [first] == urls_of(recorded)
        assert await published(server.url, "KEPT") == 1


async def test_strangers_need_the_token(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path / "nats") as server:
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            await check_server(server.url.replace(server.home.token, "guess"))
        for name in ("token", "nats.conf"):
            assert stat.S_IMODE((tmp_path / "nats" / name).stat().st_mode) == 0o600
        assert server.home.token not in repr(server.home)
        assert server.home.token.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


async def test_a_running_server_is_adopted_and_left_running(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path / "nats") as server:
        async with EmbeddedNats(tmp_path / "nats") as same:
            assert same.adopted and same.pid == server.pid
        assert await check_server(server.url) >= (2, 10)


async def test_under_the_supervisor_it_is_back_after_kill_9_and_after_its_store_was_deleted(
    tmp_path: Path,
) -> None:
    home = prepare_nats(tmp_path / "nats")
    async with Supervisor(RunLayout(tmp_path / "run")) as supervisor:
        supervisor.add(nats_spec(home))
        await supervisor.ready()
        first = supervisor.status("nats").pid
        assert first is not None
        shutil.rmtree(tmp_path / "nats" / "jetstream")
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(60):
            while (now := supervisor.status("nats")).state is not ProcessState.READY or now.pid == first:
                await supervisor.change()
        assert await check_server(home.url) >= (2, 10)


@pytest.mark.parametrize(
    ("configuration", "sentence"),
    [
        (
            "max_payload: 65536\njetstream { store_dir: STORE }",
            "accepts 65536 bytes per message, but 1048576 are needed",
        ),
        ("max_payload: 8MB", "has no JetStream"),
    ],
)
async def test_a_server_that_cannot_carry_the_bus_is_refused(
    tmp_path: Path, configuration: str, sentence: str
) -> None:
    port = free_port()
    text = f'listen: "127.0.0.1:{port}"\n' + configuration.replace("STORE", f'"{tmp_path}"')
    (tmp_path / "nats.conf").write_text(text)
    argv = [str(find_nats().path), "-c", str(tmp_path / "nats.conf")]
    child = spawn(argv, log=tmp_path / "nats.log", env={})
    try:
        await eventually(lambda: "Server is ready" in (tmp_path / "nats.log").read_text())
        with pytest.raises(ValueError, match=sentence):
            await check_server(f"nats://127.0.0.1:{port}")
    finally:
        child.kill()
        await reap(child)


def a_program(directory: Path, name: str, says: str) -> Path:
    """A program that answers its version."""
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def test_the_pinned_server_is_used_whatever_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = find_nats()
    a_program(tmp_path / "old", "nats-server", "nats-server: v2.9.10")
    a_program(tmp_path / "new", "nats-server", "nats-server: v9.0.0")
    monkeypatch.setenv("PATH", f"{tmp_path}/old:{tmp_path}/new:{os.environ['PATH']}")
    assert find_nats().path == pinned.path and pinned.source == "wheel"
    assert unusable_nats()[0] == f"{tmp_path}/old/nats-server is 2.9.10"  # the machine may have other servers


def test_without_the_pinned_server_one_that_is_too_old_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = find_nats()
    a_program(tmp_path / "old", "nats-server", "nats-server: v2.9.10")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "nats-server").symlink_to(pinned.path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/old:{tmp_path}/real")
    found = find_nats()
    assert found.version == pinned.version and found.source == "PATH"
    assert found.passed_over == (f"{tmp_path}/old/nats-server is 2.9.10",)
    monkeypatch.setenv("PATH", f"{tmp_path}/old")
    with pytest.raises(
        ValueError, match=r"old/nats-server is 2\.9\.10, but 2\.10 or newer is needed; run ops/setup"
    ):
        find_nats()


@pytest.mark.parametrize(
    ("text", "version"),
    [("nats-server: v2.15.0", (2, 15, 0)), ("2.10.0-RC.1", (2, 10, 0)), ("2.9", (2, 9)), ("unknown", ())],
)
def test_versions_are_read_as_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version
