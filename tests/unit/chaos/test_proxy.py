"""The proxy in front of the rollout server records every completion: the delivered part, and the part that was cut off."""

import time
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web

from ops.lab.chaos.ledger import Ledger, calls_of, lines
from ops.lab.chaos.proxy import proxying
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_completions_are_written_down_with_whose_they_are_and_how_long_they_took(
    tmp_path: Path,
) -> None:
    cut_off, held = anyio.Event(), []

    async def generate(request: web.Request) -> web.Response:
        """Returns the ids that it was sent; 0 first: the connection ends once the test says so."""
        ids = (await request.json())["input_ids"]
        if ids[0] == 0:
            began = time.time()
            await cut_off.wait()
            held.append(time.time() - began)
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"output_ids": ids})

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

                started = time.time()
                assert await ask({"input_ids": [1, 2], "routing_key": "12:1"}) == {"output_ids": [1, 2]}
                spent = time.time() - started
                assert await ask({"input_ids": [7]}) == {"output_ids": [7]}  # a canary's

                async def is_cut_off() -> None:
                    with pytest.raises(aiohttp.ClientError):
                        await ask({"input_ids": [0], "routing_key": "12:2"})

                started = time.time()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(is_cut_off)
                    await eventually(lambda: proxy.in_flight == 1)
                    cut_off.set()
                lasted = time.time() - started
                assert proxy.in_flight == 0
    finally:
        await runner.cleanup()
    delivered, cut = calls_of(tmp_path)
    assert (delivered.of, delivered.ids, cut.of, cut.ids) == ("12:1", (1, 2), "12:2", None)
    assert 0 <= delivered.seconds <= spent and 0 < held[0] <= cut.seconds <= lasted
    assert lines(tmp_path / "generations.jsonl") == ['{"of": "12:1", "ids": [1, 2]}']
