"""Refusals by the HTTP library itself have the form of the addressed wire; compressed bodies are read within their limits."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
import zstandard
from aiohttp import web

from orchestrator.gateway.http.app import guard
from orchestrator.gateway.http.base import decode_json, problem_response
from orchestrator.gateway.http.bodies import read_body
from orchestrator.gateway.http.dialects.errors import error_for
from orchestrator.gateway.http.encodings import MAX_MEMBERS, decoded
from orchestrator.gateway.http.protocol import WireRunner
from orchestrator.gateway.problems import BodyTooLarge, Problem
from orchestrator.runtime.json_response import json_response

pytestmark = pytest.mark.anyio

LIMIT, MOST = 4096, 8192
PATHS = ("/v1/chat/completions", "/v1/responses", "/s/token/v1/messages", "/native/complete")
HOST = b"Host: x\r\n"
CHUNKED = HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def echo(request: web.Request) -> web.StreamResponse:
        try:
            return json_response(decode_json(await read_body(request, LIMIT, anyio.to_thread.run_sync)))
        except BodyTooLarge:
            problem = Problem(400, "budget_exhausted", "too long")
        except Problem as refused:
            problem = refused
        return problem_response(error_for(request.path, request.headers, problem), problem)

    app = web.Application(client_max_size=MOST, middlewares=[guard])
    app.add_routes([web.post(path, echo) for path in PATHS])
    runner = WireRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def ask(port: int, *raw: bytes) -> tuple[int, Any, dict[bytes, bytes]]:
    """(status, decoded body, headers) of the last answer to `raw`, sent piece by piece on one connection."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        got = b""
        for piece in raw:
            await stream.send(piece)
            got = b""
            with anyio.fail_after(60):
                while not _whole(got):
                    got += await stream.receive()
    head, _, body = got.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), json.loads(body), headers


def _whole(got: bytes) -> bool:
    head, found, body = got.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(found) and len(body) >= int(length[0].split(b":")[1])


def post(path: str, rest: bytes) -> bytes:
    return b"POST " + path.encode() + b" HTTP/1.1\r\n" + rest


def compressed(path: str, coding: str, body: bytes) -> bytes:
    return post(
        path,
        HOST + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s" % (coding.encode(), len(body), body),
    )


def check_form(path: str, body: Any) -> str:
    if "/messages" in path:
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}
    else:
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    message = str(body["error"]["message"])
    assert message and "\n" not in message
    return message


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("status", "words", "rest"),
    [
        (400, "not HTTP that can be read", HOST + b"Content-Length: ten\r\n\r\n"),
        (400, "not HTTP that can be read", HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
        (400, "not HTTP that can be read", HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "not HTTP that can be read", HOST + b"Transfer-Encoding: wild\r\n\r\n"),
        (400, "not HTTP that can be read", HOST + b"bad header\r\n\r\n"),
        (400, "not HTTP that can be read", CHUNKED + b"zz\r\nabc\r\n"),
        (431, "headers of the request are too large", HOST + b"x-long: " + b"x" * 20_000 + b"\r\n\r\n"),
        (417, "Expectation Failed", HOST + b"Expect: the-moon\r\nContent-Length: 2\r\n\r\n{}"),
        (415, "content encoding 'br' is not read", HOST + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}"),
        (415, "content encoding 'snappy'", HOST + b"Content-Encoding: gzip, snappy\r\nContent-Length: 2\r\n\r\n{}"),
        (415, "3 content encodings at most", HOST + b"Content-Encoding: gzip,gzip,gzip,gzip\r\nContent-Length: 2\r\n\r\n{}"),
        (400, "cannot be read as gzip", HOST + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\njunk"),
        (400, "cannot be read as deflate", HOST + b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\njunk"),
        (400, "cannot be read as zstd", HOST + b"Content-Encoding: zstd\r\nContent-Length: 4\r\n\r\njunk"),
        (400, "not JSON", HOST + b"Content-Length: 4\r\n\r\njunk"),
        (400, "not JSON", HOST + b"Content-Type: application/json; charset=utf-16\r\nContent-Length: 4\r\n\r\n{\0}\0"),
        (400, "not JSON", HOST + b'Content-Length: 7\r\n\r\n{"a":"\xff'),
        (400, "not UTF-8", HOST + b'Content-Length: 9\r\n\r\n{"a":"\xc3"}'),
        (400, "not UTF-8", HOST + b'Content-Length: 9\r\n\r\n{"\xed\xa0\x80":1}'),
        (413, "larger than 8,192 bytes", HOST + b"Content-Length: 9000\r\n\r\n"),
    ],
)  # fmt: skip
async def test_a_request_that_is_not_http_or_whose_body_cannot_be_read_is_refused_in_the_form_of_its_wire(
    port: int, path: str, status: int, words: str, rest: bytes
) -> None:
    got, body, headers = await ask(port, post(path, rest))
    assert got == status, body
    assert words in check_form(path, body)
    assert headers[b"content-type"].startswith(b"application/json")


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_method_or_route_is_refused_in_the_form_of_its_wire(port: int, path: str) -> None:
    for status, line in (
        (405, f"DELETE {path}"),
        (405, f"GET {path}"),
        (404, f"POST {path}/nowhere"),
        (400, f"BREW {path}"),
    ):
        got, body, _ = await ask(port, line.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert got == status
        check_form(path, body)


@pytest.mark.parametrize("path", PATHS)
async def test_the_wire_of_a_broken_request_is_its_own_and_not_that_of_the_one_before(
    port: int, path: str
) -> None:
    other = PATHS[2] if path != PATHS[2] else PATHS[0]
    good = post(other, HOST + b"Content-Length: 2\r\n\r\n{}")
    status, body, _ = await ask(port, good, post(path, HOST + b"Content-Length: ten\r\n\r\n"))
    assert status == 400
    check_form(path, body)


@pytest.mark.parametrize(
    "coding", ["gzip", "x-gzip", "deflate", "raw deflate", "zstd", "GZIP", "identity", "gzip, zstd"]
)
@pytest.mark.parametrize("path", PATHS)
async def test_a_compressed_body_is_read(port: int, path: str, coding: str) -> None:
    answer = {"oak": "x" * 3000}
    raw = json.dumps(answer).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "deflate": zlib.compress,
        "raw deflate": lambda data: (one := zlib.compressobj(wbits=-15)).compress(data) + one.flush(),
        "zstd": zstandard.compress,
        "identity": bytes,
        "gzip, zstd": lambda data: zstandard.compress(gzip.compress(data)),
    }
    packed = packers.get(coding, gzip.compress)(raw)
    status, body, _ = await ask(port, compressed(path, coding.removeprefix("raw "), packed))
    assert (status, body) == (200, answer)
    halves = packed[:9], packed[9:]
    if coding == "gzip":  # consecutive members, and frames, are one body
        assert (await ask(port, compressed(path, coding, gzip.compress(raw[:9]) + gzip.compress(raw[9:]))))[
            0
        ] == 200
    if coding == "zstd":
        frames = zstandard.compress(raw[:9]) + zstandard.compress(raw[9:])
        assert (await ask(port, compressed(path, coding, frames)))[0] == 200
        status, body, _ = await ask(port, compressed(path, coding, halves[0]))
        assert status == 400 and "not JSON" in check_form(path, body)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_a_few_bytes_that_stand_for_very_many_are_refused_like_a_body_of_that_size(
    port: int, coding: str
) -> None:
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.compress,
    }
    pack = packers[coding]
    for size, status in ((LIMIT + 1, 400), (MOST + 1, 400), (2**24, 400)):
        packed = pack(b" " * size)
        if len(packed) > LIMIT:
            continue
        got, body, _ = await ask(port, compressed(PATHS[0], coding, packed))
        assert got == status, body


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
@pytest.mark.parametrize("content", [b"", b"oak" * 99])
async def test_members_of_a_compressed_body_are_read_up_to_their_limit(coding: str, content: bytes) -> None:
    wbits = {"gzip": 31, "deflate": 15, "raw deflate": -15}[coding]
    packer = zlib.compressobj(0, wbits=wbits)  # stored: the body is longer than a piece that is read at once
    member, names = packer.compress(content) + packer.flush(), [coding.removeprefix("raw ")]
    assert decoded(member * MAX_MEMBERS, names, 2**20) == content * MAX_MEMBERS
    with pytest.raises(Problem, match="it has more than 1,024 members; send it as one"):
        decoded(member * (MAX_MEMBERS + 1), names, 2**20)
    with pytest.raises(Problem, match="cannot be read as deflate" if coding != "gzip" else "in the middle"):
        decoded(member * 9 + member[:-1], names, 2**20)
