"""The agent program of the chaos runs is what its manifest says: given the same completions in another sandbox, it asks for the same ones."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from scaffolds.scaffold_toml import from_toml

from orchestrator.chaos.prepare import HARNESS
from orchestrator.chaos.relay import listening

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
TURNS = 3
TASK = "Say 7."


async def asked_for(directory: Path, token: str, away: int) -> list[tuple[str, bytes]]:
    """The paths and bodies of one attempt in a directory of its own. The gateway is away for the first `away` tries of the second turn."""
    directory.mkdir()
    asked: list[tuple[str, bytes]] = []
    refused = 0

    async def complete(request: web.Request) -> web.Response:
        nonlocal refused
        body = await request.read()
        if asked and refused < away:
            refused += 1
            return web.Response(status=503)
        asked.append((request.path, body))
        call = {
            "id": f"call-{len(asked)}",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"b": 1}'},
        }
        said = {"role": "assistant", "content": f"turn {len(asked)}", "tool_calls": [call]}
        return web.json_response({"choices": [{"message": said}]})

    application = web.Application()
    application.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(directory / "behind.sock")).start()
    heard: list[bytes] = []
    try:
        async with listening(
            str(directory / "behind.sock"), path=directory / "gateway.sock", hear=heard.append
        ):
            done = await anyio.run_process(
                [sys.executable, "-S", str(HARNESS / "agent.py")],
                input=TASK.encode(),
                cwd=directory,
                env={
                    "PATH": os.environ["PATH"],
                    "PENSTOCK_SOCKET": str(directory / "gateway.sock"),
                    "PENSTOCK_BASE_URL": "http://gateway/v1",
                    "PENSTOCK_TOKEN": token,
                    "PENSTOCK_TURNS": str(TURNS),
                },
            )
            with anyio.fail_after(20):
                while len(heard) < TURNS:
                    await anyio.sleep(0.005)
    finally:
        await runner.cleanup()
    assert done.stdout == b"done\n" and refused == away
    return asked


async def test_the_agent_program_is_replayable_and_asks_for_the_same_again_in_another_sandbox(
    tmp_path: Path,
) -> None:
    assert from_toml(HARNESS / "scaffold.toml").manifest.replayable
    first = await asked_for(tmp_path / "a", "one", 0)
    again = await asked_for(tmp_path / "b", "another", 2)
    assert len(first) == TURNS and first == again
