"""How a journal's segment is written and read: MAGIC, then frames of

    u32 length · u32 crc32(payload) · payload        (little-endian; payload is JSON, one `Put` or `Settled`)

A segment that a kill cut off ends in the middle of a frame, with no whole frame behind it. Anything else is damage. Whole frames behind the
damage are found again: a payload begins with `{"op":"`, and is accepted only if its length and its crc fit.
"""

import struct
import zlib
from dataclasses import dataclass

import msgspec

MAGIC = b"PENSTOCK-JOURNAL-1\n"
_FRAME = struct.Struct("<II")
_BEGIN = b'{"op":"'  # msgspec writes the tag first


class Put(msgspec.Struct, tag="put", tag_field="op", kw_only=True):
    """A message that is kept from now on."""

    n: int
    subject: str
    msg_id: str
    schema: str
    body: msgspec.Raw


class Settled(msgspec.Struct, tag="settled", tag_field="op"):
    """Messages that need not be kept any longer."""

    ns: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContent:
    """The content of a segment. `end`: offset behind the last whole record; `torn`: bytes behind it, which a kill may have left; `damaged`:
    bytes before it that belong to no record, including a wrong MAGIC."""

    records: list[Put | Settled]
    end: int
    torn: int
    damaged: int


def frame(record: Put | Settled) -> bytes:
    """One record in its written form."""
    payload = msgspec.json.encode(record)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def read(data: bytes) -> SegmentContent:
    """Every record of a segment, in order."""
    records: list[Put | Settled] = []
    if MAGIC.startswith(data):  # cut off before it could hold any record
        complete = len(data) == len(MAGIC)
        return SegmentContent(
            records=records, end=len(data) if complete else 0, torn=0 if complete else len(data), damaged=0
        )
    at = end = len(MAGIC) if data.startswith(MAGIC) else 0
    damaged = 0
    while at < len(data):
        found = _record(data, at)
        if found is None:
            at = _next(data, at + 1)
            continue
        damaged += at - end
        records.append(found[0])
        at = end = found[1]
    if not end:  # no MAGIC and no whole record
        return SegmentContent(records=records, end=len(data), torn=0, damaged=len(data))
    return SegmentContent(records=records, end=end, torn=len(data) - end, damaged=damaged)


def _record(data: bytes, at: int) -> tuple[Put | Settled, int] | None:
    """The record at an offset, and the offset behind it."""
    if at + _FRAME.size > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, at)
    end = at + _FRAME.size + length
    payload = data[at + _FRAME.size : end]
    if not length or end > len(data) or zlib.crc32(payload) != crc:
        return None
    try:
        return msgspec.json.decode(payload, type=Put | Settled), end
    except msgspec.DecodeError:
        return None


def _next(data: bytes, at: int) -> int:
    """The first offset from `at` on where a record may begin, or the end of the data."""
    found = data.find(_BEGIN, at + _FRAME.size)
    return found - _FRAME.size if found >= 0 else len(data)
