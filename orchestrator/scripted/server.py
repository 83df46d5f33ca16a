"""A rollout server without weights: SGLang's protocol, and for every completion the ids of a script's reply."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from aiohttp import web
from tokenizers import Tokenizer

from orchestrator.contracts.marks import Finish
from orchestrator.scripted.reply import TURN_END, Reply

VERSION = "0"
LOGPROB = -0.5  # of every token, as in the canary


@dataclass(slots=True)
class Ticket:
    """The reply to the next arriving completion. `taken` is set once it has arrived."""

    reply: Reply
    taken: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One completion on the wire; `drift` compares it with the stored steps."""

    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


class ScriptedServer:
    """`sent` are the completions in the order of their answers. `policy` maps the decoded prompt to the reply of a completion without a ticket."""

    def __init__(self, model: Path, policy: Callable[[str], Reply] = lambda _: Reply(text="done")) -> None:
        self._policy = policy
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._pending: Ticket | None = None
        self._taken: dict[tuple[int, ...], Reply] = {}
        self._aborted: dict[str, anyio.Event] = {}
        self._numbers = itertools.count()
        self.sent: list[Exchange] = []
        self.url = ""

    def expect(self, reply: Reply) -> Ticket:
        """Answer the next completion with this reply."""
        self._pending = Ticket(reply)
        return self._pending

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedServer"]:
        """Serve on a free loopback port."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/pause_generation", "/continue_generation", "/flush_cache"):
            app.router.add_post(path, _ok)
        app.router.add_post("/update_weights_from_disk", _ok)
        app.router.add_get("/{name:model_info|server_info|ping|health|ready}", self._info)
        app.router.add_get("/v1/loads", _loads)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"weight_version": VERSION, "model_path": "", "max_total_num_tokens": 1 << 22}
        )

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (event := self._aborted.get(str(body.get("rid")))) is not None:
            event.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = tuple(body["input_ids"])
        if "logprob_start_len" in body:
            entries = [[None, prompt[0], None], *([LOGPROB, token, None] for token in prompt[1:])]
            return web.json_response(self._answer(body, (), Finish.LENGTH, input_token_logprobs=entries))
        ticket, self._pending = self._pending, None
        if ticket is not None:
            ticket.taken.set()
            self._taken[prompt] = ticket.reply
        # Without a ticket, this is a completion that the gateway requests again, or one for `policy`.
        reply = self._taken.get(prompt)
        if reply is None:
            reply = self._policy(self._tokenizer.decode(prompt, skip_special_tokens=False))
        ids: tuple[int, ...] = tuple(self._tokenizer.encode(reply.rendered(), add_special_tokens=False).ids)
        finish = reply.finish
        if len(ids) > (max_tokens := int(body["sampling_params"]["max_new_tokens"])):
            ids, finish = ids[:max_tokens], Finish.LENGTH
        rid = str(body["rid"])
        aborted = self._aborted[rid] = anyio.Event()
        with anyio.move_on_after(reply.after_s):
            await aborted.wait()
        del self._aborted[rid]
        kind = finish if not aborted.is_set() else Finish.ABORT
        if kind is Finish.ABORT:
            ids = ids[: len(ids) // 2]
        self.sent.append(Exchange(prompt, ids))
        return web.json_response(self._answer(body, ids, kind))

    def _answer(
        self, body: Mapping[str, Any], ids: tuple[int, ...], kind: Finish, **more: Any
    ) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": kind}
        if kind is Finish.STOP:
            finish["matched"] = self._tokenizer.token_to_id(TURN_END)
        if kind is Finish.ABORT:
            finish["message"] = "aborted"
        spans = [{"version": VERSION, "start": 0, "end": len(ids)}] if ids else []
        return {
            "text": "",
            "output_ids": list(ids),
            "meta_info": {
                "id": str(body["rid"]),
                "finish_reason": finish,
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "weight_version": VERSION,
                "weight_versions": spans,
                "output_token_logprobs": [[LOGPROB, token, None] for token in ids],
                **more,
            },
        }


async def _ok(request: web.Request) -> web.Response:
    return web.json_response({"success": True, "message": ""})


async def _loads(request: web.Request) -> web.Response:
    return web.json_response({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.0}]})
