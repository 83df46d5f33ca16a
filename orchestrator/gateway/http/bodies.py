"""Bodies of requests. The gateway checks sizes before it reads: it refuses bodies above the context, and decodes costly ones in another process.

| a body | is |
|---|---|
| above `gateway.body_limit_mb` | refused with 413, by its Content-Length or as soon as more than that has arrived |
| above the capacity of the session's context (`Limit`) | refused in the same way, in the words of a full context |
| later than `timeouts.request_body_s` | refused with 408: a byte a second would hold its connection for days |
| large, or with very many parts | decoded in its own process: decoding holds the interpreter lock |
| any other | decoded at once |
| compressed, up to 64 KiB before and after | decompressed at once |
| compressed, larger | decompressed in a thread, one at a time for a session (`completions/offload.py`) |

The same limits apply to a compressed body, both compressed and decompressed (`encodings.py`).
"""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import msgspec
from aiohttp import web

from orchestrator.gateway.http.base import decode_json, too_large
from orchestrator.gateway.http.dialects.anthropic import AnthropicDialect
from orchestrator.gateway.http.dialects.base import (
    AGENT_HEADER,
    NOTHING,
    RETRY_HEADER,
    Dialect,
    Incoming,
    Known,
    Wanted,
)
from orchestrator.gateway.http.dialects.chat import ChatDialect
from orchestrator.gateway.http.dialects.native import NativeDialect
from orchestrator.gateway.http.dialects.responses import ResponsesDialect
from orchestrator.gateway.http.encodings import Larger, codings, decoded
from orchestrator.gateway.problems import BodyTooLarge, Problem, bad_request
from orchestrator.settings.timeouts import timeouts

DIALECTS: tuple[Dialect, ...] = (ChatDialect(), ResponsesDialect(), AnthropicDialect(), NativeDialect())
LARGE = 1 << 20  # bytes
PARTS_FROM, PARTS = 1 << 16, 1 << 14  # bytes from which parts are counted; objects and lists
UNPACKED = 1 << 16  # bytes
NICENESS = 10
_PASSED = (AGENT_HEADER, RETRY_HEADER)

InThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs work off the event loop, and only as much at once as its session may have."""


async def read_body(request: web.Request, limit: int, in_thread: InThread) -> bytes:
    """The body, decompressed by `in_thread`, at most `limit` bytes. Raises BodyTooLarge above that, Problem 413 above the gateway's own limit; both
    before reading if the request has a length. Raises Problem 400 for a damaged body, 408 if it takes too long to arrive, 415 for an unsupported
    encoding, 503 if very many bodies of the session wait for a thread."""
    encodings = codings(request.headers.get("Content-Encoding", ""))
    try:
        with anyio.fail_after(timeouts().request_body_s):
            raw = await _sent(request, limit)
    except TimeoutError:
        raise Problem(
            408,
            "request_timeout",
            f"the body has not arrived within {timeouts().request_body_s:g} s: send all of it at once",
        ) from None
    if not encodings:
        return raw
    if len(raw) <= UNPACKED:
        with suppress(Larger):
            return decoded(raw, encodings, min(UNPACKED, limit, request.client_max_size))
    # A few bytes may expand to very many.
    return await in_thread(partial(_decompressed, raw, encodings, limit, request.client_max_size))


def _decompressed(raw: bytes, encodings: list[str], limit: int, most: int) -> bytes:
    maximum = min(limit, most)
    try:
        return decoded(raw, encodings, maximum)
    except Larger:
        _check(maximum + 1, limit, most)
        raise AssertionError("a body above the least of both limits is above one of them") from None


async def _sent(request: web.Request, limit: int) -> bytes:
    """The body as it was sent."""
    maximum, length = request.client_max_size, request.content_length
    if length is not None:
        _check(length, limit, maximum)
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise too_large(maximum) from None
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        _check(len(body), limit, maximum)
    return bytes(body)


def _check(length: int, limit: int, most: int) -> None:
    if length > most:
        raise too_large(most)
    if length > limit:
        raise BodyTooLarge


def costly(raw: bytes) -> bool:
    """Whether decoding `raw` would block the event loop, by its length or its number of possible objects and lists."""
    if len(raw) <= PARTS_FROM:
        return False
    return len(raw) > LARGE or raw.count(b"{") + raw.count(b"[") > PARTS


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the process."""

    incoming: Incoming | None = None
    streamed: bool = False  # of a request with too many messages
    problem: tuple[int, str, str, str | None] | None = None
    wanted: tuple[tuple[str, ...], str] | None = None


async def read_apart(
    dialect: Dialect,
    raw: bytes,
    headers: Mapping[str, str],
    known: Known,
    *,
    most: int,
    limiter: anyio.CapacityLimiter,
) -> Incoming:
    """The result of `dialect.read` on a body, computed in another process. Raises its Problem or Wanted; BodyTooLarge above `most` messages, since
    each message has at least one token."""
    passed = {key: headers[key] for key in _PASSED if key in headers}
    request = msgspec.msgpack.encode((dialect.name, raw, passed, most, known.past, known.stored))
    async with limiter:
        process = await anyio.run_process([sys.executable, "-m", __name__], input=request, stderr=None)
    output = process.stdout
    read = msgspec.msgpack.decode(output, type=_Read)
    if read.wanted is not None:
        raise Wanted(*read.wanted)
    if read.problem is not None:
        status, code, message, param = read.problem
        raise Problem(status, code, message, param=param)
    if read.incoming is None:
        raise BodyTooLarge(read.streamed)
    return read.incoming


def _answer(
    wire: str, raw: bytes, headers: dict[str, str], most: int, past: bool, stored: dict[str, Any]
) -> _Read:
    dialect = next(dialect for dialect in DIALECTS if dialect.name == wire)
    try:
        incoming = read(dialect, raw, headers, Known(past, stored))
        request = incoming.request
        if len(request.turns) > most or sum(map(_parts, request.tools)) > most:
            return _Read(streamed=incoming.stream)
        msgspec.msgpack.encode(incoming)
        return _Read(incoming=incoming)
    except Wanted as lookup:
        return _Read(wanted=(lookup.ids, lookup.param or ""))
    except Problem as problem:
        return _Read(problem=(problem.status, problem.code, problem.message, problem.param))
    except (OverflowError, TypeError) as error:  # a number that only JSON can represent
        refusal = bad_request(f"the body cannot be read: {error}")
        return _Read(problem=(refusal.status, refusal.code, refusal.message, refusal.param))


def read(dialect: Dialect, raw: bytes, headers: Mapping[str, str], known: Known = NOTHING) -> Incoming:
    """Read a body. Raises Problem 400 naming the error, Wanted if the body refers to ids that `known` does not hold."""
    try:
        return dialect.read(decode_json(raw), headers, known)
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None


def _parts(value: Any) -> int:
    """Number of values in a JSON value. Each has at least one token where it is rendered."""
    if isinstance(value, Mapping):
        return 1 + sum(map(_parts, value.values()))
    return 1 + sum(map(_parts, value)) if isinstance(value, list) else 1


def main() -> None:
    """The process: it reads one body from standard input, at a lower processor priority than the gateway."""
    os.nice(NICENESS)
    request = msgspec.msgpack.decode(
        sys.stdin.buffer.read(), type=tuple[str, bytes, dict[str, str], int, bool, dict[str, Any]]
    )
    sys.stdout.buffer.write(msgspec.msgpack.encode(_answer(*request)))


if __name__ == "__main__":
    main()
