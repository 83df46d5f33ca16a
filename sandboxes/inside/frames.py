"""What the two sides say to each other: a JSON object and bytes, each with its length before it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_HEAD = struct.Struct(">II")
MOST = 256 << 20
"""No frame is larger: more is a mistake of one side, or an attack."""


def frame(message: dict[str, Any], body: bytes = b"") -> bytes:
    """One message as it goes over the wire."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(len(text), len(body)) + text + body


class Reader:
    """Frames out of a stream of bytes that comes in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The messages that are complete now. ValueError if these are no frames."""
        self._held += data
        while len(self._held) >= _HEAD.size:
            first, second = _HEAD.unpack_from(self._held)
            if first + second > MOST:
                raise ValueError("not a frame")
            end = _HEAD.size + first + second
            if len(self._held) < end:
                return
            message = json.loads(self._held[_HEAD.size : _HEAD.size + first])
            body = bytes(self._held[_HEAD.size + first : end])
            del self._held[:end]
            yield message, body
