"""A Chat Completions server on a Unix socket that answers from a list, as the gateway does for one session."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from scaffolds.base import Endpoint

TOKEN = "a-token"
PATH = f"/s/{TOKEN}/v1"


@dataclass(slots=True)
class Failure:
    """A failed reply: an HTTP status with an OpenAI error, or with status 0 a dropped connection."""

    status: int
    code: str = "unavailable"
    message: str = "not now"


@dataclass(slots=True)
class ScriptedChat:
    """`requests` are (headers, body) in the order of arrival; `left` is the unused part of the replies."""

    socket: Path
    left: list[dict[str, Any] | Failure]
    requests: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://gateway{PATH}", TOKEN, "/run/penstock/gateway.sock")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((dict(request.headers), body))
        reply = self.left.pop(0)
        if isinstance(reply, Failure):
            if not reply.status:
                assert request.transport is not None
                request.transport.abort()
            error = {"message": reply.message, "type": reply.code, "code": reply.code, "param": None}
            return web.json_response({"error": error}, status=reply.status or 500)
        message = {"role": "assistant", "content": None, **reply}
        calls = bool(message.get("tool_calls"))
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
            }
        )


def bash(command: str, identifier: str = "call_s0_0", think: str | None = "look there") -> dict[str, Any]:
    """An assistant message that calls the tool."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    message: dict[str, Any] = {"tool_calls": [{"id": identifier, "type": "function", "function": function}]}
    return message if think is None else {**message, "reasoning_content": think}


@asynccontextmanager
async def scripted_chat(
    root: Path, replies: Sequence[dict[str, Any] | Failure]
) -> AsyncIterator[ScriptedChat]:
    """Serve `replies` on a socket below `root` that sandboxes may be given."""
    directory = root / "gateway"
    directory.mkdir()
    directory.chmod(0o755)
    chat = ScriptedChat(directory / "gateway.sock", list(replies))
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post(f"{PATH}/chat/completions", chat.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(chat.socket)).start()
        chat.socket.chmod(0o666)
        yield chat
    finally:
        await runner.cleanup()
