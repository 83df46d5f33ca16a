"""Shared by the tests of the wires: the official packages pointed at a session, and one question on each wire."""

import io
import json
from typing import Any

import aiohttp
import anthropic
import openai

from orchestrator.gateway_client import OpenSession
from tests.integration.gateway.rig import Rig

PATHS = ("/chat/completions", "/responses", "/messages")


def claude(session: OpenSession, **options: Any) -> anthropic.AsyncAnthropic:
    url = session.base_url.removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=url, api_key=session.token, max_retries=0, **options)


def gpt(session: OpenSession, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key=session.token, max_retries=0, **options)


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


async def ask(rig: Rig, path: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, Any, Any]:
    """(status, decoded body, headers) of one request; bytes are sent unchanged as the body."""
    sent: dict[str, Any] = {"data": io.BytesIO(body)} if isinstance(body, bytes) else {"json": body}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, rig.gateway.url + path, headers=headers, **sent) as answer,
    ):
        raw = await answer.read()
        return answer.status, json.loads(raw) if raw else None, answer.headers


def bodies(text: str, **more: Any) -> dict[str, dict[str, Any]]:
    """The same question on each wire."""
    messages = {"messages": [user(text)], **more}
    renamed = {"max_output_tokens" if key == "max_tokens" else key: value for key, value in more.items()}
    return {
        "/chat/completions": messages,
        "/messages": {"max_tokens": 9, **messages},
        "/responses": {"input": text, **renamed},
    }


def message_of(path: str, body: Any) -> str:
    """The sentence of an error, once it has the form that the wire's clients read."""
    if path.startswith("/messages"):
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}
    else:
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    message = str(body["error"]["message"])
    assert message and "\n" not in message
    return message
