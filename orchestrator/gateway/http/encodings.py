"""Bodies that a client compressed: decompressed up to the size limit. The HTTP library delivers only the raw bytes.

| Content-Encoding | read by |
|---|---|
| identity, none | not decompressed |
| gzip, x-gzip, deflate (with a zlib header or without) | zlib; MAX_MEMBERS members at most |
| zstd | zstandard |
| any other (br among them) | refused with 415; the message names the supported ones |
"""

import zlib
from collections.abc import Callable

import zstandard

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.problems import Problem, bad_request

MAX_CODINGS = 3  # nested codings; no client uses more than one
# A member without content has 8 bytes: only their number ends a body of such members.
MAX_MEMBERS = 1024
_WINDOW = 64 * 2**20  # bytes of memory that one frame of zstd may need
_PIECE = 1 << 16

Read = Callable[[bytes, int], bytes]


class Larger(Exception):
    """The decompressed body exceeds its limit."""


def codings(header: str) -> list[str]:
    """The codings of a Content-Encoding header in the order in which they were applied. Raises Problem 415 for an unsupported coding."""
    names = [name for part in header.split(",") if (name := part.strip().lower()) not in ("", "identity")]
    unknown = next((name for name in names if name not in READERS), None)
    if unknown is not None:
        raise Problem(
            415,
            "unsupported_encoding",
            f"the content encoding {quoted(unknown)} is not read here: send gzip, deflate, zstd or no encoding",
        )
    if len(names) > MAX_CODINGS:
        raise Problem(415, "unsupported_encoding", f"a body may have {MAX_CODINGS} content encodings at most")
    return names


def decoded(raw: bytes, names: list[str], most: int) -> bytes:
    """The body without its codings. Raises Larger above `most` bytes and keeps none of them; Problem 400 if the body is damaged."""
    for name in reversed(names):
        try:
            raw = READERS[name](raw, most)
        except (zlib.error, zstandard.ZstdError, ValueError) as error:
            raise bad_request(f"the body cannot be read as {name}: {' '.join(str(error).split())}") from None
    return raw


def _zlib(raw: bytes, most: int, wbits: int) -> bytes:
    """Decompress one or more consecutive members. Raises ValueError if the last one is incomplete, or if there are too many.

    zlib copies the bytes behind a member, so the body is read in pieces.
    """
    out, view, members = bytearray(), memoryview(raw), 0
    decompressor = None
    for start in range(0, len(view), _PIECE):
        rest: bytes | memoryview = view[start : start + _PIECE]
        while rest:
            if decompressor is None:
                decompressor, members = zlib.decompressobj(wbits), members + 1
                if members > MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS:,} members; send it as one")
            out += decompressor.decompress(rest, most + 1 - len(out))
            if len(out) > most:
                raise Larger
            rest = decompressor.unused_data
            if decompressor.eof:
                decompressor = None
    if decompressor is not None:
        raise ValueError("it ends in the middle")
    return bytes(out)


def _gzip(raw: bytes, most: int) -> bytes:
    return _zlib(raw, most, 16 + zlib.MAX_WBITS)


def _deflate(raw: bytes, most: int) -> bytes:
    try:
        return _zlib(raw, most, zlib.MAX_WBITS)
    except zlib.error:  # many clients omit the header
        return _zlib(raw, most, -zlib.MAX_WBITS)


def _zstd(raw: bytes, most: int) -> bytes:
    """Decompress one or more frames. A truncated frame gives its bytes so far; their JSON is then incomplete too."""
    out = bytearray()
    with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
        raw, read_across_frames=True
    ) as reader:
        while chunk := reader.read(min(_PIECE, most + 1 - len(out))):
            out += chunk
            if len(out) > most:
                raise Larger
    return bytes(out)


READERS: dict[str, Read] = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "zstd": _zstd}
