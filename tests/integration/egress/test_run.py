"""A rollout whose agent and tests have a granted network, from its lease to its verdict: real runner, verifier and sandboxes."""

from pathlib import Path

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.egress.rig import World, placed
from tests.integration.runner.rig import a_task, open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("tasks")]

GET = "python3 -c \"import urllib.request as u; print(u.urlopen('http://%s.example.org/', timeout=20).read().decode())\""
SETTINGS = """[agent]
network_mode = "allowlist"
allowed_hosts = ["agent.example.org"]
[verifier]
network_mode = "allowlist"
allowed_hosts = ["tests.example.org"]
"""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return placed(monkeypatch)


async def test_every_step_of_a_task_reaches_its_hosts(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    model: Path,
    world: World,
) -> None:
    files = {"task.toml": f'{SETTINGS}[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'}
    for name in ("one", "two"):
        files |= {
            f"steps/{name}/instruction.md": "Fetch the page.",
            f"steps/{name}/solution/solve.sh": f"{GET % 'agent'} > {name}\n",
            f"steps/{name}/tests/test.sh": f"grep -q page {name} && echo 1 > /logs/verifier/reward.txt\n",
        }
    task = Task.from_files({path: text.encode() for path, text in files.items()})
    async with (
        world.serving(),
        open_rig(database_url, nats_server.url, directory, model, sandbox={"egress": "allow_list"}) as rig,
    ):
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(task, scaffold="oracle", purpose=Purpose.EVAL)
        assert await rig.verdict(rollout) == 1.0


async def test_agent_and_tests_of_a_rollout_each_reach_their_own_hosts_and_the_log_names_the_rollout(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    model: Path,
    world: World,
) -> None:
    solution = f"{GET % 'agent'} > own; {GET % 'tests'} > others || true\n"
    check = (
        f"grep -q page own && [ ! -s others ] && {GET % 'tests'} > /dev/null && ! {GET % 'agent'} > /dev/null"
    )
    task = a_task(check=check, settings=SETTINGS, files={"solution/solve.sh": solution.encode()})
    granted = {"egress": "allow_list", "egress_hosts": ["*.example.org"]}
    async with (
        world.serving(),
        open_rig(database_url, nats_server.url, directory, model, sandbox=granted) as rig,
    ):
        with capture_logs(processors=[merge_contextvars]) as log:
            rig.start_runner()
            rig.start_verifier()
            rollout = await rig.submit(task, scaffold="oracle", purpose=Purpose.EVAL)
            reward = await rig.verdict(rollout)
    decisions = [
        (line["event"], line["host"]) for line in log if line["event"] in ("egress.allowed", "egress.refused")
    ]
    assert decisions == [
        ("egress.allowed", "agent.example.org"),
        ("egress.refused", "tests.example.org"),
        ("egress.allowed", "tests.example.org"),
        ("egress.refused", "agent.example.org"),
    ]
    assert {line["rollout"] for line in log if line["event"].startswith("egress.")} == {rollout}
    assert reward == 1.0
