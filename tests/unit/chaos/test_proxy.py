"""What stands before the rollout server writes down every completion: what was delivered, and what was cut off."""

import time
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web

from orchestrator.chaos.ledger import Ledger, calls_of, lines
from orchestrator.chaos.proxy import proxying

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def generate(request: web.Request) -> web.Response:
    """Delivers what it was sent; 0 first: the connection ends after a while."""
    ids = (await request.json())["input_ids"]
    if ids[0] == 0:
        await anyio.sleep(0.2)
        assert request.transport is not None
        request.transport.abort()
    return web.json_response({"output_ids": ids})


async def test_completions_are_written_down_with_whose_they_are_and_how_long_they_took(
    tmp_path: Path,
) -> None:
    application = web.Application()
    application.router.add_post("/generate", generate)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        with Ledger(tmp_path) as ledger:
            async with proxying(ledger) as proxy, aiohttp.ClientSession() as session:
                proxy.to = f"http://127.0.0.1:{runner.addresses[0][1]}"

                async def ask(body: dict[str, object]) -> object:
                    url = f"http://127.0.0.1:{proxy.port}/generate"
                    async with session.post(url, json=body) as answer:
                        return await answer.json()

                asked = time.time()
                assert await ask({"input_ids": [1, 2], "routing_key": "12:1"}) == {"output_ids": [1, 2]}
                spent = time.time() - asked
                assert await ask({"input_ids": [7]}) == {"output_ids": [7]}  # a canary's
                with pytest.raises(aiohttp.ClientError):
                    await ask({"input_ids": [0], "routing_key": "12:2"})
                assert proxy.in_flight == 0
    finally:
        await runner.cleanup()
    delivered, cut = calls_of(tmp_path)
    assert (delivered.of, delivered.ids, cut.of, cut.ids) == ("12:1", (1, 2), "12:2", None)
    assert 0 <= delivered.seconds <= spent and cut.seconds >= 0.19
    assert lines(tmp_path / "generations.jsonl") == ['{"of": "12:1", "ids": [1, 2]}']
