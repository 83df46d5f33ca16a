"""Another user of the machine attacks a run that `penstock up` started, with everything that the machine shows to all; the answers.

One stack, one attacker (`attacker.py`, a program of another uid), a test for each attack. The table of ops/guides/security.md names them.
"""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import psutil
import pytest
from sqlalchemy import text

from orchestrator.bus.link import urls_of
from orchestrator.deploy.embedded.leftovers import find_leftovers
from orchestrator.deploy.embedded.postgres_cluster import recorded_tcp_url
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.gateway_client import GatewayAdmin, OpenSession, SessionBudget
from orchestrator.pool.engine import open_engine
from tests.e2e.observer import PATIENCE_S, Observer, observing
from tests.e2e.stack_rig import REPOSITORY, Stack, place, until

pytestmark = [pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("processes")]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

STRANGER = 61234
"""The uid of the attacker: no account, no sandbox and no service of ours has it."""
QUICK = "\n[timeouts]\nrequest_head_s = 3.0\nrequest_body_s = 3.0\n"
SPARE_MB = 256  # what the gateway may grow by, of the 512 MiB that a bomb would unpack

# attack → the answer; a list names all different answers to its variants.
ANSWERS: dict[str, Any] = {
    "rollout_server_without_key": ["401"],
    "rollout_server_with_a_guessed_key": ["401"],
    "rollout_server_by_a_form_of_a_web_page": ["403"],
    "rollout_server_by_dns_rebinding": ["403"],
    "rollout_server_slow_head": "closed",
    "gateway_without_token": ["401"],
    "gateway_with_a_guessed_token": ["401"],
    "gateway_with_the_token_of_an_ended_session": ["409"],
    "gateway_with_a_token_on_another_session": ["401"],
    "gateway_by_a_form_of_a_web_page": ["401"],
    "gateway_admin_without_secret": ["401"],
    "gateway_admin_with_a_guessed_secret": ["401"],
    "gateway_admin_with_the_token_of_a_session": ["401"],
    "gateway_admin_on_the_socket_of_sandboxes": "404",
    "gateway_slow_head": "closed",
    "gateway_slow_body": "408",
    "gateway_body_of_10_gb": "413",
    "gateway_nesting_of_100000_brackets": ["400"],
    "gateway_zip_bomb": ["400"],
    "nats_without_login": ["-ERR 'Authorization Violation'"],
    "nats_without_a_word_of_login": ["-ERR 'Authorization Violation'"],
    "nats_with_a_guessed_token": ["-ERR 'Authorization Violation'"],
    "nats_monitoring_port": [],
    "postgres_without_a_password": ["28000", "28P01"],
    "postgres_with_a_guessed_password": ["28P01"],
    "postgres_replication": "28000",
    "postgres_socket": "EACCES",
    "postgres_socket_directory": "EACCES",
    "dashboard_without_token": ["401"],
    "dashboard_with_a_guessed_token": ["401"],
    "dashboard_with_a_guessed_cookie": ["401"],
    "dashboard_by_a_form_of_a_web_page": ["401"],
    "dashboard_by_dns_rebinding": ["403"],
    "dashboard_events_and_websocket": ["401"],
    "dashboard_slow_head": "closed",
    "files_of_the_run": {},
    "files_in_temporary_directories": {
        "its directory": ["list", "read"],
        "the gateway's socket": ["connect"],
    },
    "files_of_sandboxes": {},
    "files_in_shared_memory": {},
    "signals": ["EPERM"],
    "memory_and_environment_of_processes": [],
}
SHOWN = ("command_lines", "open_pages")  # what all may read; no secret is in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """The attacker's finds, and the state of the run before and after."""

    found: dict[str, Any]
    secrets: dict[str, str]
    versions: tuple[int, int]
    restarts: list[str]
    grown_mb: float
    tracebacks: list[str]


@pytest.fixture(scope="module")
def attacked(model: Path) -> Iterator[Attacked]:
    with place() as directory:
        stack = Stack(directory)
        try:
            yield anyio.run(attack, stack, model)
        finally:
            stack.destroy()


async def attack(stack: Stack, model: Path) -> Attacked:
    """Start a stack, bring it to where it has weights, optimizer state, journals, sessions and busy sandboxes, and let the attacker loose."""
    stack.log.touch(mode=0o600)  # a shell of the run's user writes it
    done = stack.penstock_alone("init", str(stack.directory), "--model", str(model))
    assert done.returncode == 0, done
    stack.configure(model, batches=50, more=QUICK)
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(4)
        await seen.until_published(2)
        await seen.until_served(2)
        await seen.publish(10, seconds=500.0)
        await seen.until_at_work("verifier")
        await until(lambda: bool(stack.sandboxes_left()), "a sandbox is at work", PATIENCE_S)
        async with sessions(stack, seen) as (ended, live, other):
            known = found_by_anybody(stack) | {
                "ended": ended.token,
                "live": live.token,
                "other": other.token,
                "lease": {"run": "e2e", "rollout": 1, "attempt": 1, "epoch": 1},
            }
            before = {process.name: process.pid for process in stack.status().processes}
            version, memory = await served(seen), peak_mb(before["gateway"])
            found = await anyio.to_thread.run_sync(run_attacker, known)
            socket = Path(known["gateway_socket"])
            names = {str(socket): "the gateway's socket", str(socket.parent): "its directory"}
            reached = found["files_in_temporary_directories"]
            found["files_in_temporary_directories"] = {
                names.get(path, path): acts for path, acts in reached.items()
            }
            grown = peak_mb(before["gateway"]) - memory
            restarts = [
                f"{process.name}: {process.state}, {process.detail}"
                for process in stack.status().processes
                if process.pid != before[process.name] or process.state is not ProcessState.READY
            ]
            secrets = secrets_of(stack) | {"session": live.token, "ended session": ended.token}
            return Attacked(
                found=found,
                secrets=secrets,
                versions=(version, await served(seen)),
                restarts=restarts,
                grown_mb=grown,
                tracebacks=stack.tracebacks(),
            )


async def served(seen: Observer) -> int:
    return int(await seen.value("select version from rollout_servers where run_id = :run"))


@asynccontextmanager
async def sessions(stack: Stack, seen: Observer) -> AsyncIterator[list[OpenSession]]:
    """Tokens of three sessions, of rollouts that no runner has yet; the first is over."""
    waiting = (
        "select rollout_id from rollouts where run_id = :run and state = 'waiting' order by 1 desc limit 3"
    )

    async def enough() -> bool:
        return len(await seen.rows(waiting)) == 3

    await until(enough, "three rollouts wait", PATIENCE_S)
    rollouts = [row.rollout_id for row in await seen.rows(waiting)]
    async with (
        open_engine(stack.home.connected().services.database_url, size=1) as engine,
        engine.begin() as connection,
    ):
        await connection.execute(
            text(
                "update rollouts set state = 'running', lease_epoch = 1, attempt = 1 where rollout_id = any(:ids)"
            ),
            {"ids": rollouts},
        )
    url = stack.home.gateway_url_file.read_text().strip()
    async with GatewayAdmin(url, stack.home.gateway_secret.read_text().strip()) as admin:
        budget = SessionBudget(max_turns=100, max_context=1024)
        opened = [
            await admin.open_session(run=seen.run, rollout=rollout, attempt=1, epoch=1, budget=budget)
            for rollout in rollouts
        ]
        await admin.seal(rollout=rollouts[0], attempt=1, epoch=1)
        yield opened


def run_attacker(known: dict[str, Any]) -> dict[str, Any]:
    program = (REPOSITORY / "tests/e2e/attacker.py").read_text()
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", program],
        input=json.dumps(known),
        capture_output=True,
        text=True,
        timeout=200,
        cwd="/",
        env={"PATH": os.defpath},
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def found_by_anybody(stack: Stack) -> dict[str, Any]:
    """Ports, process ids and names of files. All are taken as known, also those that only their owner can list."""
    home, config = stack.home, stack.home.connected()
    pids = pids_of(stack)
    targets = json.loads(stack.penstock("metrics", "targets").stdout)
    metrics = {
        target["labels"]["instance"]: int(target["targets"][0].rpartition(":")[2]) for target in targets
    }
    ports = {
        "gateway": urlsplit(home.gateway_url_file.read_text()).port,
        "web": urlsplit(home.web_url_file.read_text()).port,
        "nats": urlsplit(urls_of(config.services.nats_url)[0]).port,
        "postgres": urlsplit(recorded_tcp_url(home.layout.postgres) or "").port,
        "rollout-server": metrics["rollout-server"],
    }
    sockets = json.loads((home.layout.postgres / "server.json").read_text())["sockets"]
    pgdata = home.layout.postgres / "pgdata"  # a link, if the server's user cannot reach the run's directory
    return {
        "ports": ports | {f"metrics of {name}": port for name, port in metrics.items()},
        "metrics": metrics,
        "listening": listening(pids),
        "pids": pids,
        "postgres_socket": f"{sockets}/.s.PGSQL.{ports['postgres']}",
        "gateway_socket": str(next((stack.directory / "tmp").rglob("gateway.sock"))),
        "paths": {
            "run": [str(home.file), str(stack.log), *below(home.layout.root), *below(pgdata.resolve())],
            "sandboxes": below(stack.sandbox_root),
            "temporary": [
                path
                for path in below(stack.directory / "tmp")[1:]  # the rig makes that directory itself
                if not Path(path).is_relative_to(stack.sandbox_root)
            ],
            "memory": sorted({path for pid in pids for path in shared_memory(pid)}),
        },
    }


def below(root: Path) -> list[str]:
    """A directory and all names below it; links are not followed."""
    return [
        root.as_posix(),
        *(f"{at}/{name}" for at, names, files in os.walk(root) for name in (*names, *files)),
    ]


def pids_of(stack: Stack) -> list[int]:
    """The processes of the run with all their descendants, those in sandboxes too."""
    status = stack.status()
    pids = {process.pid for process in find_leftovers(stack.home.layout)} | {status.supervisor.pid}
    for pid in list(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            pids |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    assert {process.pid for process in status.processes} <= pids
    return sorted(pids)


def listening(pids: Iterable[int]) -> list[int]:
    """The TCP ports on which these processes listen."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            open_ones = psutil.Process(pid).net_connections("tcp")
            found |= {each.laddr.port for each in open_ones if each.status == psutil.CONN_LISTEN}
    return sorted(found)


def shared_memory(pid: int) -> set[str]:
    """Files in /dev/shm that a process has mapped."""
    try:
        return set(re.findall(r"(/dev/shm/\S+)", Path(f"/proc/{pid}/maps").read_text()))
    except OSError:
        return set()


def peak_mb(pid: int | None) -> float:
    """The most memory that a process had, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def secrets_of(stack: Stack) -> dict[str, str]:
    home, services = stack.home, stack.home.connected().services
    key = home.server_key
    assert key is not None
    return {
        "admin secret": home.gateway_secret.read_text().strip(),
        "key of rollout servers": key.read_text().strip(),
        "token of the dashboard": home.web_token.read_text().strip(),
        "token of NATS": urlsplit(urls_of(services.nats_url)[0]).username or "",
        "password of PostgreSQL": urlsplit(recorded_tcp_url(home.layout.postgres) or "").password or "",
    }


@as_root
@pytest.mark.parametrize("name", ANSWERS)
def test_an_attack_of_another_user_is_refused(attacked: Attacked, name: str) -> None:
    assert attacked.found[name] == ANSWERS[name]


@as_root
@pytest.mark.parametrize("name", SHOWN)
def test_no_secret_is_in_what_all_may_read(attacked: Attacked, name: str) -> None:
    shown = attacked.found[name]
    if name == "open_pages":
        assert {page: answer[0] for page, answer in shown.items() if answer[0] != 200} == {}
    assert len(json.dumps(shown)) > 1000, shown
    assert [
        what for what, secret in attacked.secrets.items() if len(secret) < 16 or secret in json.dumps(shown)
    ] == []


@as_root
def test_after_all_attacks_the_run_is_as_before(attacked: Attacked) -> None:
    assert not attacked.restarts and not attacked.tracebacks
    before, after = attacked.versions
    assert before == after == 2
    assert attacked.grown_mb < SPARE_MB
    assert set(attacked.found) == {*ANSWERS, *SHOWN}


def test_the_guide_names_every_attack_and_no_other() -> None:
    guide = (REPOSITORY / "ops/guides/security.md").read_text()
    section = guide.partition("## Other users of the machine")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == {*ANSWERS, *SHOWN}
