"""The messages between the two sides: a JSON object and bytes, each preceded by its length."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_HEAD = struct.Struct(">II")
MAX_FRAME_BYTES = 1 << 30
"""Maximum size of a frame. The sender refuses a larger one: the reader would end the line, and the sender send it again."""


class FrameTooLarge(ValueError):
    """Signals a message that does not fit into a frame."""


def max_body() -> int:
    """Bytes of files in one frame. The rest is for their paths."""
    return MAX_FRAME_BYTES // 4 * 3


def frame(message: dict[str, Any], body: bytes = b"") -> bytes:
    """One message as sent over the wire. `FrameTooLarge` if the other side would refuse it."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) + len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(
            f"a message has {len(text) + len(body):,} bytes, and the line to a pod carries {MAX_FRAME_BYTES:,}"
        )
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
