"""A task's MCP server and skills in the real programs: each starts the server in its sandbox and lists its tools."""

from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.integration.conftest import directory
from tests.integration.runner.rig import a_task, open_rig, says

__all__ = ["directory"]

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("harness")]

SERVER = b"""#!/usr/bin/python3
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    with open("/app/requests", "a") as requests:
        requests.write(f"{request['method']} {sys.argv[1]} {os.getuid() != 0}\\n")
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "words", "version": "1"}}
    elif request["method"] == "tools/list":
        result = {"tools": [{"name": "count", "description": "Count.", "inputSchema": {"type": "object", "properties": {}}}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
SETTINGS = """[environment]
skills_dir = "skills"
[[environment.mcp_servers]]
name = "words"
transport = "stdio"
command = "/app/server"
args = ["a b"]
"""
CONTEXT = 262_144
SKILL = b"---\nname: count\ndescription: How to count.\n---\nCount.\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy's directory, for its tokenizer, which spends about one token per character."""
    from trainer.policy.init import Shape, make_policy

    return make_policy(tmp_path_factory.mktemp("policy"), seed=0, shape=Shape(context=CONTEXT))


@pytest.mark.parametrize("name", ["codex", "opencode", "qwen-code"])
async def test_a_program_starts_the_server_of_the_task_inside(
    name: str, database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    task = a_task(
        says("done"),
        says("done"),
        check="grep -qx 'tools/list a b True' requests",
        settings=SETTINGS,
        files={"environment/files/server": SERVER, "environment/files/skills/count/SKILL.md": SKILL},
    )
    async with open_rig(
        database_url, nats_server.url, directory, model, stage={"max_context": CONTEXT, "max_turns": 8}
    ) as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(task, scaffold=name)
        reward = await rig.verdict(rollout)
        (attempt, *_) = await rig.attempts(rollout)
        assert (reward, attempt.failure_class) == (1.0, "completed"), (attempt.reason, attempt.log)
