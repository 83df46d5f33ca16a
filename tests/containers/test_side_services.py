"""Side services over a real podman: started in order and healthy first, reached by name, alone in their network, gone with the sandbox."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxes import procfs
from sandboxes.base import (
    File,
    ImageRefused,
    Limits,
    SandboxError,
    SandboxSpec,
    ServiceHealth,
    ServiceState,
    SideService,
)
from sandboxes.conformance.registry import long_sleep, sleepers
from sandboxes.container.engine import ROOT, ContainerEngine
from sandboxes.container.provider import ContainerProvider
from sandboxes.container.settings import ContainerSettings
from sandboxes.reap import default_root
from tests.containers.conftest import SETTINGS
from tests.containers.test_podman import SHIM
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.tier("containers")]

IMAGE = {"Dockerfile": File(b"FROM localhost/penstock-sandbox\n")}
STORE = """
import http.server, os, sys
kept = {}
class Store(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(kept.get(self.path, os.environ.get("GREETING", "")).encode())
    def do_PUT(self):
        if self.path == "/quit": os._exit(9)
        kept[self.path] = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Store).serve_forever()
"""
"""A database of a page: it keeps what was put, as long as it lives."""
TELLING = STORE.replace('os.environ.get("GREETING", "")', 'open("/tmp/a").read()')
CAPABILITIES = sum(1 << number for number in (0, 1, 3, 5, 6, 7, 10))
"""chown, dac_override, fowner, kill, setgid, setuid, net_bind_service."""
ASK = """
import sys, urllib.request as u
body = sys.argv[2].encode() if sys.argv[2:] else None
print(u.urlopen(u.Request(sys.argv[1], data=body, method="GET" if body is None else "PUT"), timeout=5).read().decode())
"""


def store(name: str = "db", port: int = 8000, **changes: Any) -> SideService:
    found = SideService(
        name=name,
        build=IMAGE,
        shown="localhost/penstock-sandbox",
        entrypoint=("python3", "-c", STORE),
        command=(str(port),),
        health=ServiceHealth(
            argv=("python3", "-c", ASK, f"http://{name}:{port}/"), interval_s=0.5, timeout_s=10, retries=20
        ),
    )
    return replace(found, **changes)


def script(name: str, text: str, **changes: Any) -> SideService:
    return store(name, **{"entrypoint": ("sh", "-c", text), "command": None, "health": None, **changes})


def check(text: str, **changes: Any) -> ServiceHealth:
    return ServiceHealth(argv=("sh", "-c", text), interval_s=0.1, **changes)


async def containers() -> dict[str, int]:
    """The running containers of this test, by the ends of their names, and when each started, in seconds."""
    words = ("ps", f"--filter=label={ROOT}={default_root()}", "--format={{.Names}} {{.StartedAt}}")
    listed = (await ContainerEngine(SETTINGS).must(*words)).decode().splitlines()
    return {name: int(since) for name, since in map(str.split, listed)}


async def inspected(end: str, what: str) -> Any:
    [name] = [each for each in await containers() if each.endswith(end)]
    return json.loads(
        await ContainerEngine(SETTINGS).must("container", "inspect", f"--format={{{{json .{what}}}}}", name)
    )


async def answer_of(sandbox: Any, *words: str) -> str:
    result = await sandbox.exec(["python3", "-c", ASK, *words], timeout_s=30)
    assert result.ok, result
    return str(result.stdout.decode().strip())


async def test_services_are_reached_by_their_names_and_keep_their_state_over_what_changed_ends() -> None:
    db = store(env={"GREETING": "hello"}, names=("database",))
    api = store("api", 8001, after={"db": ServiceState.HEALTHY})
    async with ContainerProvider().open(SandboxSpec(services=(db, api))) as sandbox:
        assert await answer_of(sandbox, "http://database:8000/") == "hello"
        await answer_of(sandbox, "http://db:8000/row", "kept")
        await answer_of(sandbox, "http://api:8001/row", "other")
        await sandbox.put({"/app/new": File(b"1")})
        await sandbox.changed()
        assert await answer_of(sandbox, "http://db:8000/row") == "kept"
        assert await answer_of(sandbox, "http://api:8001/row") == "other"
    async with ContainerProvider().open(SandboxSpec(services=(db,))) as sandbox:
        assert await answer_of(sandbox, "http://db:8000/row") == "hello", (
            "the state of another sandbox's service"
        )
    assert not await ContainerEngine(SETTINGS).left(default_root())


async def test_a_service_reaches_the_sandbox_as_main_and_nothing_has_another_network() -> None:
    away = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    seen = f'cat /proc/net/dev; cat /etc/hosts; python3 -c "{away}" 2>&1 | tail -1'
    text = f'({seen}) >/tmp/a; until python3 -c "$ASK" http://main:9000/ "$(cat /tmp/a)"; do sleep 0.2; done; sleep 600'
    spy = script("spy", text, env={"ASK": ASK})
    async with ContainerProvider().open(SandboxSpec(services=(spy,))) as sandbox:
        await sandbox.start(["python3", "-c", STORE, "9000"])
        found = ""
        for _ in range(100):
            result = await sandbox.exec(["python3", "-c", ASK, "http://localhost:9000/"], timeout_s=30)
            if found := result.stdout.decode().strip():
                break
        lines = found.splitlines()
        assert [line.split(":")[0].strip() for line in lines[2:3]] == ["lo"] and lines[3].startswith(
            "127.0.0.1"
        )
        assert "127.0.0.1 main spy" in lines and "unreachable" in lines[-1]


async def test_two_sandboxes_at_once_have_services_of_their_own_at_the_same_port() -> None:
    async with (
        ContainerProvider().open(SandboxSpec(services=(store(env={"GREETING": "one"}),))) as first,
        ContainerProvider().open(SandboxSpec(services=(store(env={"GREETING": "two"}),))) as second,
    ):
        assert (await answer_of(first, "http://db:8000/"), await answer_of(second, "http://db:8000/")) == (
            "one",
            "two",
        )


async def test_a_service_starts_after_those_that_it_waits_for_are_healthy() -> None:
    slow = script(
        "slow",
        "sleep 1.5; touch /tmp/up; sleep 600",
        health=ServiceHealth(argv=("test", "-e", "/tmp/up"), interval_s=0.2, retries=100),
    )
    late = script("late", "sleep 600", after={"slow": ServiceState.HEALTHY})
    soon = script("soon", "sleep 600", after={"slow": ServiceState.STARTED})
    async with ContainerProvider().open(SandboxSpec(services=(late, soon, slow))):
        began = {name.rpartition("-")[2]: since for name, since in (await containers()).items()}
        assert began["1"] >= began["3"] + 1 and began["2"] < began["1"], began


async def test_user_work_directory_variables_and_volumes_of_a_service_are_those_of_the_spec() -> None:
    teller = script(
        "teller",
        'id -u >/tmp/a; pwd >>/tmp/a; echo $A >>/tmp/a; python3 -c "$STORE" 8000',
        user="1234",
        work_dir="/usr",
        env={"A": "a\nb", "STORE": TELLING},
        volumes=("/data/kept",),
        health=store("teller").health,
    )
    async with ContainerProvider().open(SandboxSpec(services=(teller,))) as sandbox:
        assert (await answer_of(sandbox, "http://teller:8000/")).split() == ["1234", "/usr", "a", "b"]
        [volume] = [
            each for each in await inspected("-services-1", "Mounts") if each["Destination"] == "/data/kept"
        ]
        assert not (await ContainerEngine(SETTINGS).call("volume", "inspect", volume["Name"])).returncode
    assert (await ContainerEngine(SETTINGS).call("volume", "inspect", volume["Name"])).returncode


ENDED = "the service db ended with exit code {} before the sandbox was ready; "
UNHEALTHY = "the service db did not become healthy: its health check failed {} times in a row, the last one "


@pytest.mark.parametrize(
    ("service", "sentence"),
    [
        (script("db", "echo cannot bind >&2; exit 3"), ENDED.format(3) + "its output ends with: cannot bind"),
        (script("db", "exit 0"), ENDED.format(0) + "it wrote nothing"),
        (store(entrypoint=("absent-program",)), ENDED.format(127) + ".*absent-program"),
        (
            script("db", "echo waiting; sleep 600", health=check("echo not yet; exit 4", retries=3)),
            UNHEALTHY.format(3) + r"ended with exit code 4 \(not yet\); its output ends with: waiting",
        ),
        (
            script("db", "sleep 600", health=check("sleep 60", timeout_s=1, retries=2)),
            UNHEALTHY.format(2) + "did not end within 1 s; it wrote nothing",
        ),
        (
            store(entrypoint=("python3", "-c", "import sys; print('\\0x' * 300000); sys.exit(5)")),
            ENDED.format(5) + "its output ends with: [x ]{500}$",
        ),
    ],
    ids=["ends", "ends well", "absent", "never healthy", "check hangs", "much output"],
)
async def test_a_service_that_cannot_serve_is_named_with_what_it_wrote_and_nothing_stays(
    service: SideService, sentence: str
) -> None:
    with pytest.raises(SandboxError, match=sentence):
        async with ContainerProvider().open(SandboxSpec(services=(service, store("other", 8001)))):
            pass
    assert not await ContainerEngine(SETTINGS).left(default_root())


async def test_two_services_at_one_port_are_refused_by_the_second_ones_own_words() -> None:
    second = store("second", health=check("exit 1", retries=1000), after={"db": ServiceState.HEALTHY})
    with pytest.raises(
        SandboxError, match=r"the service second ended with exit code 1 .*Address already in use"
    ):
        async with ContainerProvider().open(SandboxSpec(services=(store(), second))):
            pass


async def test_an_image_that_cannot_be_had_is_the_tasks_mistake_and_names_the_service() -> None:
    absent = store(build={"Dockerfile": File(b"FROM localhost/absent:1\n")}, shown="localhost/absent:1")
    with pytest.raises(
        ImageRefused, match="the image of the service db, localhost/absent:1: its build by podman failed"
    ):
        async with ContainerProvider().open(SandboxSpec(services=(absent,))):
            pass


async def test_a_service_that_ends_later_stays_ended_and_the_sandbox_goes_on() -> None:
    services = (store(), store("other", 8001))
    async with ContainerProvider().open(SandboxSpec(services=services)) as sandbox:
        assert not (await sandbox.exec(["python3", "-c", ASK, "http://db:8000/quit", "now"], timeout_s=30)).ok
        assert (
            b"refused" in (await sandbox.exec(["python3", "-c", ASK, "http://db:8000/"], timeout_s=30)).stderr
        )
        assert await answer_of(sandbox, "http://other:8001/") == ""
        await sandbox.changed()
        assert await answer_of(sandbox, "http://other:8001/") == ""


async def test_the_limits_of_a_sandbox_are_those_of_each_service_and_a_service_has_few_rights() -> None:
    report = "cat /proc/self/status /sys/fs/cgroup/memory.max 2>/dev/null; ulimit -f"
    teller = script(
        "db", f'({report}) >/tmp/a; python3 -c "$STORE" 8000', env={"STORE": TELLING}, health=store().health
    )
    limits = Limits(memory_mb=200, processes=40, disk_mb=64)
    async with ContainerProvider().open(SandboxSpec(services=(teller,), limits=limits)) as sandbox:
        found = await answer_of(sandbox, "http://db:8000/")
        rights = {line.split()[0]: line.split()[1] for line in found.splitlines() if len(line.split()) > 1}
        assert int(rights["CapBnd:"], 16) == CAPABILITIES, rights["CapBnd:"]
        assert rights["NoNewPrivs:"] == "1" and rights["Seccomp:"] in ("0", "2")
        host = await inspected("-services-1", "HostConfig")
        assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (200 << 20, 200 << 20, 64)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
async def test_services_of_an_ended_owner_are_ended_at_once_and_removed_by_the_next(
    how: signal.Signals,
) -> None:
    asleep = long_sleep()
    # A program that hides its variables, as servers that write their title into them do.
    text = f"import os; os.execve('/bin/sleep', ['sleep', '{asleep}'], {{}})"
    source = (
        "import anyio\nfrom sandboxes.container.provider import ContainerProvider\nfrom sandboxes.base import *\n"
        f"image = {{'Dockerfile': File({IMAGE['Dockerfile'].data!r})}}\n"
        f"service = SideService(name='db', build=image, shown='', entrypoint=('python3', '-c', {text!r}))\n"
        "async def own():\n    async with ContainerProvider().open(SandboxSpec(services=(service,))) as sandbox:\n"
        "        process = await sandbox.start(['sh', '-c', 'echo ready; sleep 600'])\n        await process.read()\n"
        "        print('ready', flush=True)\n        await process.wait()\nanyio.run(own)"
    )
    async with await anyio.open_process([sys.executable, "-c", source]) as owner:
        assert owner.stdout is not None and (await owner.stdout.receive()).startswith(b"ready")
        assert len(await ContainerEngine(SETTINGS).left(default_root())) == 3 and sleepers(asleep)
        os.kill(owner.pid, how)
    await eventually(lambda: sleepers(asleep), lambda seen: not seen, every_s=0.1)
    await eventually(lambda: list(default_root().glob("*.json")), lambda seen: not seen, every_s=0.1)
    provider = ContainerProvider()
    await eventually(provider.remove_leftovers, lambda removed: removed == 0, every_s=0.1)
    assert not await ContainerEngine(SETTINGS).left(default_root())


async def test_what_ends_the_holder_from_outside_ends_the_sandbox() -> None:
    async with ContainerProvider().open(SandboxSpec(services=(store(),))) as sandbox:
        await answer_of(sandbox, "http://db:8000/")
        [holder] = [each for each in await containers() if each.endswith("-services")]
        for pid in procfs.marked("PENSTOCK_SESSION", holder):
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: list(procfs.marked("PENSTOCK_SESSION", holder)), lambda seen: not seen)
        with pytest.raises(SandboxError, match="the network of a sandbox's side services was ended"):
            await sandbox.exec(["true"])


async def test_an_open_that_is_cancelled_leaves_nothing() -> None:
    for after_s in (0.3, 1.0, 2.0):
        with anyio.move_on_after(after_s):
            never = ServiceHealth(argv=("false",), interval_s=600)
            async with ContainerProvider().open(SandboxSpec(services=(store(health=never),))):
                pass
    assert not await ContainerEngine(SETTINGS).left(default_root())


async def test_the_commands_for_docker_run_as_they_are(tmp_path: Path) -> None:
    record, shim = tmp_path / "argv", tmp_path / "docker"
    shim.write_text(
        SHIM.format(python=sys.executable, record=str(record), options=list(SETTINGS.global_options))
    )
    shim.chmod(0o755)
    provider = ContainerProvider(ContainerSettings(engine=str(shim), image=SETTINGS.image))
    async with provider.open(SandboxSpec(services=(store(),))) as sandbox:
        await answer_of(sandbox, "http://db:8000/")
    runs = [words for words in map(json.loads, record.read_text().splitlines()) if words[0] == "run"]
    joined = [words for words in runs if any(word.startswith("--network=container:") for word in words)]
    assert len(runs) == 3 and len(joined) == 2
    assert not any(word.startswith("--hostname") for words in joined for word in words)
