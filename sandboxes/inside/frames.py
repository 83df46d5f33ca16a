"""The messages between the two sides: a JSON object and bytes, each preceded by its length."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_HEAD = struct.Struct(">II")
MAX_FRAME_BYTES = 256 << 20
"""Maximum size of a frame. A larger one is a mistake of one side, or an attack."""


def frame(message: dict[str, Any], body: bytes = b"") -> bytes:
    """One message as sent over the wire."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(len(text), len(body)) + text + body


class Reader:
    """Reads frames from a stream of bytes that arrives in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The messages that are complete now. ValueError if the bytes are not frames."""
        self._held += data
        while len(self._held) >= _HEAD.size:
            header_size, body_size = _HEAD.unpack_from(self._held)
            if header_size + body_size > MAX_FRAME_BYTES:
                raise ValueError("not a frame")
            end = _HEAD.size + header_size + body_size
            if len(self._held) < end:
                return
            message = json.loads(self._held[_HEAD.size : _HEAD.size + header_size])
            body = bytes(self._held[_HEAD.size + header_size : end])
            del self._held[:end]
            yield message, body
