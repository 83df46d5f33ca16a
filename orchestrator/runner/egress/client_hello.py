"""The name of the server in a TLS ClientHello (RFC 8446, RFC 6066): the only part of TLS that the proxy reads."""

from typing import Final

MAX_BYTES: Final = 64 * 1024
"""A ClientHello with post-quantum keys has about 2 KB."""
MAX_RECORDS: Final = 16
"""Clients use one record, or a few. The message is read again with every piece that arrives, so that many small records would take the event loop."""
MAX_EXTENSIONS: Final = 128
"""Clients send about 20."""
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_BYTES: Final = 1 << 14


class NotTls(ValueError):
    """The bytes are no ClientHello; the end of a sentence."""


class _Bytes:
    """A cursor over a message. NotTls where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise NotTls("the ClientHello ends too early")
        self._at += count
        return piece

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def vector(self, count: int) -> "_Bytes":
        """The content behind a length of `count` bytes."""
        return _Bytes(self.take(self.number(count)))

    @property
    def empty(self) -> bool:
        return self._at >= len(self._data)


def server_name(data: bytes) -> str | None:
    """The name that the ClientHello at the beginning of `data` asks for, empty without one. None: more bytes are needed.

    NotTls if it is not a ClientHello, or names several servers.
    """
    message = _message(data)
    return None if message is None else _name(message)


def _message(data: bytes) -> bytes | None:
    """The handshake message, which may be spread over records."""
    held, at = b"", 0
    for _ in range(MAX_RECORDS):
        header = data[at : at + 5]
        if header[:1] and header[0] != _HANDSHAKE:
            raise NotTls("it does not begin with a TLS handshake")
        if header[1:2] and header[1] != 3:
            raise NotTls("it is not TLS 1")
        if len(header) < 5:
            return None
        size = int.from_bytes(header[3:], "big")
        if not 0 < size <= _RECORD_BYTES:
            raise NotTls("a TLS record has an impossible length")
        held += data[at + 5 : at + 5 + size]
        if held and held[0] != _CLIENT_HELLO:
            raise NotTls("the first message is not a ClientHello")
        wanted = int.from_bytes(held[1:4], "big") + 4 if len(held) >= 4 else None
        if wanted is not None and wanted > MAX_BYTES:
            raise NotTls("the ClientHello is too large")
        if wanted is not None and len(held) >= wanted:
            return held[4:wanted]
        at += 5 + size
        if at > len(data):
            return None
    raise NotTls(f"the ClientHello is spread over more than {MAX_RECORDS} TLS records")


def _name(message: bytes) -> str:
    hello = _Bytes(message)
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compression
    names: list[bytes] = []
    count, extensions = 0, _Bytes(b"") if hello.empty else hello.vector(2)
    while not extensions.empty:
        count += 1
        if count > MAX_EXTENSIONS:
            raise NotTls(f"the ClientHello has more than {MAX_EXTENSIONS} extensions")
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            entries = content.vector(2)
            if entries.empty or not content.empty:
                raise NotTls("the list of server names is malformed")
            while not entries.empty:
                if entries.number(1) != _HOST_NAME:
                    raise NotTls("a server name is of an unknown kind")
                size = entries.number(2)
                names.append(entries.take(size))
                if len(names) > 1:
                    raise NotTls("it names several servers")
    if not names:
        return ""
    try:
        return names[0].decode("ascii")
    except UnicodeDecodeError:
        raise NotTls("the server's name is not ASCII") from None
