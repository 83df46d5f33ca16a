"""Heads of HTTP/1 messages, read strictly: whatever two readers could understand differently is refused.

A connection carries one request. The proxy writes the head again, without headers of the connection and with `Connection: close`, so that
neither side keeps it for a second request, which nothing would have checked.
"""

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.contracts.hosts import Address, host_of
from orchestrator.contracts.quote import quoted

END: Final = b"\r\n\r\n"
MAX_BYTES: Final = 32 * 1024
HTTP, HTTPS = 80, 443
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\\?#%\s]+)(?::([0-9]{1,5}))?")
_OF_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
_INTERIM: Final = range(100, 200)


class Malformed(ValueError):
    """A head that is refused; one sentence without a full stop. `status`: of the answer. `host`, `port`: as far as they are known."""

    def __init__(self, why: str, *, status: int = 400, host: str = "", port: int = 0) -> None:
        super().__init__(why)
        self.status, self.host, self.port = status, host, port


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`tunnel`: whether it is a CONNECT. `head`: what the server gets, empty for a tunnel. `body`: bytes of the body."""

    host: str | Address
    port: int
    tunnel: bool
    head: bytes
    body: int


def request(head: bytes) -> Request:
    """Read a request's head, which ends in `END`. Malformed if it is refused."""
    first, *lines = _lines(head)
    words = first.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise Malformed("the request line must be METHOD target HTTP/1.1")
    method, target, version = words
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Malformed("only HTTP/1.1 and HTTP/1.0 are spoken here", status=505)
    fields = [_field(line) for line in lines]
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1:
        raise Malformed("there is more than one Host header")
    if method == b"CONNECT":
        host, port = _authority(target.decode("ascii"), None)
        if hosts:
            _same(hosts[0], host, port, port)
        return Request(host=host, port=port, tunnel=True, head=b"", body=0)
    host, port, path = _absolute(target.decode("ascii"))
    if not hosts and version == b"HTTP/1.1":
        raise Malformed("the Host header is missing", host=str(host), port=port)
    if hosts:
        _same(hosts[0], host, port, HTTP)
    if method == b"TRACE":
        raise Malformed("TRACE is not forwarded", status=405, host=str(host), port=port)
    body = _body(fields, str(host), port)
    kept = [
        b"%s: %s" % (name, value) for name, value in fields if name not in _OF_CONNECTION and name != b"host"
    ]
    named = f"[{host}]" if ":" in str(host) else str(host)
    start = b"%s %s HTTP/1.1" % (method, path.encode("ascii"))
    written = b"\r\n".join([start, b"Host: " + named.encode("ascii"), *kept, b"Connection: close"]) + END
    return Request(host=host, port=port, tunnel=False, head=written, body=body)


def _lines(head: bytes) -> list[bytes]:
    text = head.removesuffix(END)
    lines = text.split(b"\r\n")
    if any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines):
        raise Malformed("lines must end with CR LF")
    return lines


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise Malformed("a header is not of the form Name: value on one line")
    return name.lower(), value.strip(b" \t")


def _absolute(target: str) -> tuple[str | Address, int, str]:
    """(host, port, path) of an absolute URL."""
    scheme, separator, rest = target.partition("://")
    if not separator:
        raise Malformed("this is a proxy: write the whole URL")
    if scheme.lower() != "http":
        raise Malformed("only http:// is forwarded, use CONNECT for https://")
    cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if "#" in target or "\\" in target:
        raise Malformed("the URL has a fragment or a backslash")
    host, port = _authority(authority, HTTP)
    return host, port, path if path.startswith("/") else f"/{path}"


def _authority(text: str, default: int | None) -> tuple[str | Address, int]:
    if "@" in text:
        raise Malformed("the URL has a user before its host", host=quoted(text.rpartition("@")[2])[:300])
    found = _AUTHORITY.fullmatch(text)
    if found is None or (found[2] is None and default is None):
        raise Malformed("the target is not of the form host:port", host=quoted(text)[:300])
    port = int(found[2]) if found[2] is not None else default
    assert port is not None
    try:
        return host_of(found[1]), port
    except ValueError as error:
        raise Malformed(str(error), status=403, host=quoted(found[1])[:300], port=port) from None


def _same(header: bytes, host: str | Address, port: int, default: int) -> None:
    try:
        named = _authority(header.decode("ascii"), default)
    except UnicodeDecodeError:
        raise Malformed("the Host header is not ASCII", host=str(host), port=port) from None
    except Malformed as error:
        raise Malformed(f"Host header: {error}", host=str(host), port=port) from None
    if named != (host, port):
        raise Malformed("the Host header names another host than the URL", host=str(host), port=port)


def _body(fields: list[tuple[bytes, bytes]], host: str, port: int) -> int:
    lengths = [value for name, value in fields if name == b"content-length"]
    if any(name == b"transfer-encoding" for name, _ in fields):
        raise Malformed(
            "a request's body needs a Content-Length and no Transfer-Encoding",
            status=411,
            host=host,
            port=port,
        )
    if len(lengths) > 1 or any(not re.fullmatch(rb"\d{1,15}", value) for value in lengths):
        raise Malformed("the Content-Length is not one number", host=host, port=port)
    return int(lengths[0]) if lengths else 0


def response(head: bytes) -> tuple[bytes, bool]:
    """(a response's head for the program, whether another head follows because this one is interim). Malformed if it cannot be forwarded."""
    first, *lines = _lines(head)
    found = re.fullmatch(rb"HTTP/1\.[01] (\d{3})(?: .*)?", first)
    if found is None:
        raise Malformed("the server does not speak HTTP/1", status=502)
    status = int(found[1])
    if status == 101:
        raise Malformed("the server changes the protocol", status=502)
    kept = [line for line in lines if _field(line)[0] not in _OF_CONNECTION]
    interim = status in _INTERIM
    return b"\r\n".join([first, *kept, *([] if interim else [b"Connection: close"])]) + END, interim


def refusal(status: int, why: str) -> bytes:
    """The answer to a request that is not forwarded."""
    body = f"Penstock egress proxy: {why}.\n".encode()
    start = (
        f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}"
    )
    return f"{start}\r\nConnection: close\r\n\r\n".encode() + body
