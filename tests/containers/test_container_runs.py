"""Rollouts with sandboxes in a real podman, from their leases to their verdicts: side services, steps, and a granted network."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from sandboxes.container.engine import ContainerEngine
from sandboxes.container.provider import ContainerProvider
from sandboxes.reap import default_root
from tests.containers.conftest import SETTINGS
from tests.containers.test_side_services import ASK, STORE
from tests.integration.conftest import directory, model
from tests.integration.egress.rig import PUBLIC, World, open_world, placed
from tests.integration.runner.rig import Rig, open_rig

__all__ = ["directory", "model"]

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("containers")]

Runs = Callable[..., AbstractAsyncContextManager[Rig]]
DOCKERFILE = "FROM localhost/penstock-sandbox\nCOPY store.py /srv/\n"
COMPOSE = """
services:
  main:
    environment: {TABLE: rows}
    depends_on: {db: {condition: service_healthy}}
  db:
    build: ./db
    command: python3 /srv/store.py 8000
    environment: {GREETING: fresh}
    healthcheck: {test: ["CMD", "python3", "-c", "import socket; socket.create_connection(('db', 8000), 1)"], interval: 200ms, retries: 50}
"""
SERVICE = {
    "environment/docker-compose.yaml": COMPOSE,
    "environment/db/Dockerfile": DOCKERFILE,
    "environment/db/store.py": STORE,
    "environment/files/ask.py": ASK,
}
PASSES = "mkdir -p /logs/verifier; if {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
GET = "python3 -c \"import urllib.request as u; print(u.urlopen('http://%s.example.org/', timeout=20).read().decode())\""


@pytest.fixture
def runs(database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path) -> Runs:
    """Opens a rig with a runner and a verifier at work, whose sandboxes are containers."""

    @asynccontextmanager
    async def opened(**sandbox: Any) -> AsyncIterator[Rig]:
        own = {"image": SETTINGS.image, "global_options": list(SETTINGS.global_options)}
        settings = {"memory_mb": 256, "container": own, **sandbox}
        async with open_rig(
            database_url, nats_server.url, directory, model, provider="container", sandbox=settings
        ) as rig:
            rig.start_runner()
            rig.start_verifier()
            yield rig

    return opened


def a_task(files: Mapping[str, str]) -> Task:
    given = {"task.toml": "", "instruction.md": "Do it.", **files}
    return Task.from_files({path: text.encode() for path, text in given.items()})


async def verdict(rig: Rig, task: Task) -> Any:
    rollout = await rig.submit(task, scaffold="oracle", purpose=Purpose.EVAL)
    await rig.state(rollout, "verified", "lost", "dead")
    query = """SELECT v.reward, v.components, v.log, a.failure_class, a.reason FROM attempts a LEFT JOIN verdicts v USING (rollout_id)
                WHERE a.rollout_id = :id ORDER BY a.attempt DESC LIMIT 1"""
    return (await rig.rows(query, id=rollout))[0]


async def test_agent_and_tests_have_services_of_their_own_and_collect_brings_out_what_the_agent_changed(
    runs: Runs,
) -> None:
    dumped = "python3 ask.py http://db:8000/$TABLE > /logs/artifacts/dump"
    task = a_task(
        {
            **SERVICE,
            "task.toml": f"[[verifier.collect]]\ncommand = {dumped!r}\n",
            "solution/solve.sh": "python3 ask.py http://db:8000/$TABLE written\n",
            "tests/test.sh": PASSES.format(
                '[ "$(cat /logs/artifacts/dump)" = written ] && [ "$(python3 ask.py http://db:8000/$TABLE)" = fresh ]'
            ),
        }
    )
    async with runs() as rig:
        found = await verdict(rig, task)
        assert (found.reward, found.failure_class) == (1.0, "completed"), found
    assert not await ContainerEngine(SETTINGS).left(default_root())


async def test_a_service_keeps_its_state_over_the_steps_of_a_task_and_the_steps_are_graded_in_containers(
    runs: Runs,
) -> None:
    files = {
        "task.toml": '[[steps]]\nname = "one"\nmin_reward = 1.0\n[[steps]]\nname = "two"\n',
        "steps/two/workdir/setup.sh": "touch prepared\n",
        "steps/one/solution/solve.sh": "python3 ask.py http://db:8000/row kept; echo one > out\n",
        "steps/two/solution/solve.sh": "ls prepared && python3 ask.py http://db:8000/row >> out\n",
        "steps/one/tests/test.sh": PASSES.format('[ "$(cat out)" = one ]'),
        "steps/two/tests/test.sh": PASSES.format('[ "$(tr "\\n" " " < out)" = "one kept " ]'),
    }
    files |= {f"steps/{name}/instruction.md": "Do it." for name in ("one", "two")}
    given = {path: text for path, text in {**SERVICE, **files}.items()}
    task = Task.from_files({path: text.encode() for path, text in given.items()})
    async with runs() as rig:
        found = await verdict(rig, task)
        assert found.components == {"reward": 1.0, "one/reward": 1.0, "two/reward": 1.0}, found


async def test_a_service_that_never_becomes_healthy_fails_the_attempt_by_its_name(runs: Runs) -> None:
    compose = COMPOSE.replace("8000), 1", "8001), 1").replace("retries: 50", "retries: 2")
    files = {
        **SERVICE,
        "environment/docker-compose.yaml": compose,
        "tests/test.sh": "true\n",
        "solution/solve.sh": "true\n",
    }
    async with runs() as rig:
        found = await verdict(rig, a_task(files))
        assert (found.reward, found.failure_class) == (None, "infra_failure")
        assert found.reason.startswith(
            "sandbox: the service db did not become healthy: its health check failed 2 times in a row, the last one ended with exit code 1 ("
        )


async def test_a_service_whose_image_cannot_be_had_is_the_tasks_mistake_by_its_name(runs: Runs) -> None:
    compose = "services: {db: {image: 'localhost/absent:1'}}"
    files = {
        "environment/docker-compose.yaml": compose,
        "tests/test.sh": "true\n",
        "solution/solve.sh": "true\n",
    }
    async with runs() as rig:
        found = await verdict(rig, a_task(files))
        assert (found.reward, found.failure_class) == (None, "infra_failure")
        assert found.reason.startswith(
            "task: the image of the service db, localhost/absent:1: its build by podman failed at FROM localhost/absent:1"
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return placed(monkeypatch)


async def test_agent_and_tests_of_every_step_reach_the_granted_hosts_and_the_services_without_the_proxy(
    runs: Runs, world: World
) -> None:
    settings = """[agent]
network_mode = "allowlist"
allowed_hosts = ["agent.example.org"]
[verifier]
network_mode = "allowlist"
allowed_hosts = ["tests.example.org"]
[[steps]]
name = "one"
[[steps]]
name = "two"
"""
    files = {**SERVICE, "task.toml": settings}
    for name in ("one", "two"):
        files |= {
            f"steps/{name}/instruction.md": "Fetch the page.",
            f"steps/{name}/solution/solve.sh": f"{GET % 'agent'} > {name}; python3 ask.py http://db:8000/ >> {name}; {GET % 'tests'} >> {name}\n",
            f"steps/{name}/tests/test.sh": PASSES.format(
                f'[ "$(wc -l < {name})" = 2 ] && grep -q page {name} && grep -q fresh {name} && {GET % "tests"} >/tmp/a && ! {GET % "agent"}'
            ),
        }
    task = Task.from_files({path: text.encode() for path, text in files.items()})
    async with world.serving(), runs(egress="allow_list") as rig:
        found = await verdict(rig, task)
        assert found.components == {"reward": 1.0, "one/reward": 1.0, "two/reward": 1.0}, found


async def test_the_egress_proxy_of_a_container_lets_through_what_is_granted_and_nothing_else() -> None:
    async with open_world(("example.org",), provider=ContainerProvider()) as opened:
        assert "page of GET / HTTP/1.1" in await opened.python("print(page('http://example.org/'))")
        assert "page of" in await opened.python("print(through('example.org:443', 'example.org'))")
        dialled = len(opened.world.dialled)
        attempts = (
            f"status(get('http://{PUBLIC}/'))",
            "status(get('http://other.example.com/'))",
            "status(get('http://example.org/', 'other.example.com'))",
            "status(tunnel('169.254.169.254:443')[0])",
        )
        printed = (await opened.python("\n".join(f"print({each})" for each in attempts))).split()
        assert len(printed) == len(attempts) and set(printed) <= {"400", "403", "closed"}, printed
        assert len(opened.world.dialled) == dialled
        assert (await opened.python("print(through('example.org:443', 'other.org'))")).strip() == "closed"
        direct = "import socket; socket.create_connection(('93.184.216.34', 80), 2)"
        assert not (await opened.sandbox.exec(["python3", "-c", direct])).ok
