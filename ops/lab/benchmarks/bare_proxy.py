"""The least that a recording gateway can be with these libraries: what `ops/bench gateway` holds the gateway against.

    python -m ops.lab.benchmarks.bare_proxy --socket PATH --server URL

Takes a request from a Unix socket, sends its body on, makes the answer durable in a file (one synchronous append, in a thread) and gives it back:
aiohttp on both sides, on uvloop. It reads no message, renders no prompt, knows no session, and publishes nothing.
"""

import argparse
import asyncio
import os
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web


async def serve(path: Path, server: str) -> None:
    """Serve until cancelled."""
    # Writes are durable on return.
    descriptor = os.open(
        path.with_suffix(".kept"), os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_DSYNC, 0o600
    )
    connector = aiohttp.TCPConnector(limit=0)
    no_limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=no_limit, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:

        async def handle(request: web.Request) -> web.Response:
            body = await request.read()
            async with http.post(
                server + request.path, data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                raw = await answer.read()
            await asyncio.to_thread(os.write, descriptor, raw)
            return web.Response(body=raw, content_type="application/json")

        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.lab.benchmarks.bare_proxy", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--server", required=True)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # like the gateway
        runner.run(serve(arguments.socket, arguments.server))


if __name__ == "__main__":
    main()
