"""The attempts of a program in a sandbox: placed in it, and read by the tests' programs."""

import os
import socket
import ssl
import urllib.request
from urllib.parse import urlsplit

CIPHERS = "AECDH-AES128-SHA:@SECLEVEL=0"


def tls() -> ssl.SSLContext:
    """TLS without certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    return context


def proxy() -> socket.socket:
    """A connection to the proxy."""
    found = urlsplit(os.environ["HTTP_PROXY"])
    return socket.create_connection((found.hostname or "", found.port or 0), 20)


def rest(stream: socket.socket) -> bytes:
    """Everything until the end."""
    data = b""
    try:
        while piece := stream.recv(65536):
            data += piece
    except OSError as error:
        data += repr(error).encode()
    return data


def raw(data: bytes) -> str:
    """The whole answer to bytes."""
    with proxy() as stream:
        stream.sendall(data)
        return rest(stream).decode("latin-1")


def get(url: str, host: str | None = None) -> str:
    """The answer to a request for a URL by the proxy."""
    host = urlsplit(url).netloc if host is None else host
    return raw(f"GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def status(answer: str) -> str:
    return answer.split(" ")[1] if answer.startswith("HTTP/") else "closed"


def page(url: str) -> str:
    """A page as programs read it: by the variables of the environment."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler(), urllib.request.HTTPSHandler(context=tls())
    )
    with opener.open(url, timeout=20) as answer:
        return str(answer.read().decode())


def tunnel(target: str, host: str = "") -> tuple[str, socket.socket]:
    """(the answer to CONNECT, its stream)."""
    stream = proxy()
    stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {host or target}\r\n\r\n".encode())
    return stream.recv(65536).decode("latin-1"), stream


def through(target: str, name: str | None, request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> str:
    """The answer through a tunnel to a ClientHello that names `name` (None: no name)."""
    answer, stream = tunnel(target)
    if " 200 " not in answer.split("\r\n")[0]:
        return status(answer)
    try:
        with tls().wrap_socket(stream, server_hostname=name) as inner:
            inner.sendall(request)
            return rest(inner).decode("latin-1")
    except (ssl.SSLError, OSError) as error:
        return "closed" if isinstance(error, (ssl.SSLError, ConnectionError)) else repr(error)
