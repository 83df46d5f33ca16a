"""A rollout server that computes nothing: what a measurement puts behind the gateway, so that only the gateway is measured.

    python -m ops.lab.benchmarks.stub_server --model DIR --port P [--delay-ms 250] [--tokens 50]

Speaks the part of SGLang's protocol that a gateway needs. Every completion is the same `tokens` ids, the last one the end token, after
`delay_ms`. It is not a mock for tests: those use the embedded rollout server.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from aiohttp import web
from tokenizers import Tokenizer

from orchestrator.contracts.numbers import INT4, option, real, whole

VERSION = "0"


class Stub:
    """The stub's replies, made once."""

    def __init__(self, model: Path, delay_s: float, tokens: int) -> None:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        word = tokenizer.encode("done ", add_special_tokens=False).ids
        end = tokenizer.token_to_id("<|im_end|>")
        assert end is not None, "the demo's tokenizer has an end token"
        self._ids = [word[i % len(word)] for i in range(tokens - 1)] + [end]
        self._delay_s = delay_s

    async def generate(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        limit = body["sampling_params"]["max_new_tokens"]
        ids = self._ids[:limit]
        meta: dict[str, Any] = {
            "id": body.get("rid") or "stub",
            "finish_reason": {"type": "stop", "matched": ids[-1]}
            if len(ids) == len(self._ids)
            else {"type": "length"},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": VERSION,
            "weight_versions": [{"version": VERSION, "start": 0, "end": len(ids)}] if ids else [],
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        }
        if "logprob_start_len" in body:  # the canary: logprobs of the prompt
            meta["input_token_logprobs"] = [
                [None if i == 0 else 0.0, token, None] for i, token in enumerate(body["input_ids"])
            ]
        elif self._delay_s:
            await asyncio.sleep(self._delay_s)
        return _json({"text": "", "output_ids": ids, "meta_info": meta})

    async def model_info(self, request: web.Request) -> web.Response:
        return _json({"model_path": "stub", "weight_version": VERSION, "is_generation": True})

    async def ok(self, request: web.Request) -> web.Response:
        return _json({"success": True, "message": "", "status": "ok", "started": time.time()})

    async def loads(self, request: web.Request) -> web.Response:
        return _json({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]})


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def serve(model: Path, delay_s: float, tokens: int, port: int) -> None:
    """Serve on loopback until cancelled."""
    stub = Stub(model, delay_s, tokens)
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/generate", stub.generate)
    app.router.add_get("/model_info", stub.model_info)
    app.router.add_get("/v1/loads", stub.loads)
    app.router.add_route("*", "/{other:.*}", stub.ok)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.lab.benchmarks.stub_server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=option(whole, least=0, most=65535), required=True)
    parser.add_argument("--delay-ms", type=option(real, least=0, most=1e6), default=0.0)
    parser.add_argument("--tokens", type=option(whole, least=1, most=INT4), default=50)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # like real servers
        runner.run(serve(arguments.model, arguments.delay_ms / 1000, arguments.tokens, arguments.port))


if __name__ == "__main__":
    main()
