"""The agent program of the chaos runs matches its manifest: given the same completions in another sandbox, it makes the same requests."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from scaffolds.scaffold_toml import from_toml

from ops.lab.chaos.prepare import HARNESS
from ops.lab.chaos.relay import listening
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
TURNS = 3
TASK = "Say 7."


async def requests_of(directory: Path, token: str, away: int) -> list[tuple[str, bytes]]:
    """The paths and bodies of one attempt in a directory of its own. The gateway is away for the first `away` tries of the second turn."""
    directory.mkdir()
    requests: list[tuple[str, bytes]] = []
    refused = 0

    async def complete(request: web.Request) -> web.Response:
        nonlocal refused
        body = await request.read()
        if requests and refused < away:
            refused += 1
            return web.Response(status=503)
        requests.append((request.path, body))
        call = {
            "id": f"call-{len(requests)}",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"b": 1}'},
        }
        message = {"role": "assistant", "content": f"turn {len(requests)}", "tool_calls": [call]}
        return web.json_response({"choices": [{"message": message}]})

    application = web.Application()
    application.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(directory / "behind.sock")).start()
    witnessed: list[bytes] = []
    try:
        async with listening(
            str(directory / "behind.sock"), path=directory / "gateway.sock", hear=witnessed.append
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
            await eventually(lambda: len(witnessed) >= TURNS)
    finally:
        await runner.cleanup()
    assert done.stdout == b"done\n" and refused == away
    return requests


async def test_the_agent_program_is_replayable_and_asks_for_the_same_again_in_another_sandbox(
    tmp_path: Path,
) -> None:
    assert from_toml(HARNESS / "scaffold.toml").manifest.replayable
    first = await requests_of(tmp_path / "a", "one", 0)
    again = await requests_of(tmp_path / "b", "another", 2)
    assert len(first) == TURNS and first == again
