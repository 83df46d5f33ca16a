"""Shared steps of every route: find the token, read JSON, write JSON, refuse."""

import hmac
import json
import math
from typing import Any

import msgspec
from aiohttp import web

from orchestrator.gateway.problems import Problem, bad_request, credentials_disagree, unknown_session
from orchestrator.pool.sanitize import clean_json
from orchestrator.runtime.json_response import json_response

FUTILE = frozenset({409, 502})  # statuses that clients would retry, here without effect


def token_of(request: web.Request) -> str:
    """The session token of a request. Problem 401 when there is none, or path and API key disagree."""
    tokens = [request.match_info["token"]] if "token" in request.match_info else []
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        tokens.append(bearer.strip())
    if key := request.headers.get("x-api-key", "").strip():
        tokens.append(key)
    if not tokens:
        raise unknown_session()
    if not all(hmac.compare_digest(_bytes(tokens[0]), _bytes(other)) for other in tokens):
        raise credentials_disagree()
    return tokens[0]


def _bytes(token: str) -> bytes:
    return token.encode("utf-8", "surrogateescape")


async def read_json(request: web.Request) -> Any:
    """The decoded body. Problem 413 above the limit, 400 when it is not JSON."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large(request.client_max_size) from None
    return decode_json(raw)


def too_large(limit: int) -> Problem:
    """413: the gateway does not accept a body of that size."""
    return Problem(413, "request_too_large", f"the body is larger than {limit:,} bytes")


def decode_json(raw: bytes) -> Any:
    """The value of a body. Problem 400 when it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not JSON: its text is not UTF-8 ({error.reason})") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply: send fewer levels of lists and objects") from None
    except msgspec.DecodeError as error:
        wrong = f"the body is not JSON: {error}"
    if b"\\u" not in raw:
        raise bad_request(wrong)
    # JavaScript writes lone surrogates where it cuts a string in two. All JSON readers but msgspec accept them; no store can hold them.
    try:
        return clean_json(json.loads(raw, parse_constant=_no_number, parse_float=_finite))
    except (ValueError, RecursionError):
        raise bad_request(wrong) from None


def _no_number(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def problem_response(body: Any, problem: Problem) -> web.Response:
    """A refusal; `body` is in the form of its dialect."""
    response = json_response(body, problem.status)
    if problem.status in FUTILE:
        response.headers["x-should-retry"] = "false"
    return response
