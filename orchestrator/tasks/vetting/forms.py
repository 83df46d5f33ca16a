"""The texts that a file shows to an agent who decodes it in one or two commands: as it is, reversed, base64, hex, decompressed, and these nested.
A file of up to 1 MB is also decoded from its end: the text of its reversed bytes.

Archives may lie about their sizes, point back to themselves, or hold the same bytes many times: what is read of one file has a limit (`Budget`).
"""

import base64
import binascii
import bz2
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import IO, Final

from orchestrator.tasks import git_objects

DEPTH: Final = 3
"""Nested encodings: gzip in base64 in hex."""
MAX_BYTES: Final = 16 << 20
"""Of one decoded text; a longer one is several, which overlap."""
OVERLAP: Final = 64 << 10
MAX_DECODED: Final = 256 << 20
"""Bytes of all decoded texts of one file."""
MIN_COST: Final = 4096
"""Bytes that a decoded text counts for at least, however short it is."""
BACKWARDS_BYTES: Final = 1 << 20
"""Of a file that is decoded backwards, too."""
_PIECE: Final = 4096
_CHUNK: Final = 1 << 20
SHORT: Final = 12
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]{16,}(?:\r?\n[A-Za-z0-9+/_-]{4,})*")
_HEX: Final = (
    re.compile(rb"(?:[0-9a-fA-F]{2}){12,}(?:\r?\n(?:[0-9a-fA-F]{2}){4,})*"),
    re.compile(rb"(?:[0-9a-fA-F]{2}[ :,]){11,}[0-9a-fA-F]{2}"),
    re.compile(rb"(?:\\x[0-9a-fA-F]{2}){10,}"),
    re.compile(rb"(?:0[xX][0-9a-fA-F]{2}[\s,;]{1,8}){9,}0[xX][0-9a-fA-F]{2}"),
)
_DUMP: Final = re.compile(
    rb"^[0-9a-fA-F]{6,8}:?[ ]{1,2}((?:[0-9a-fA-F]{2}(?:[0-9a-fA-F]{2})?(?:[ ]{1,2}|$)){1,16})", re.MULTILINE
)
"""A line of xxd, `hexdump -C` or od: a place, then up to 16 bytes."""
_DUMPED: Final = 32
"""Digits of such a line; characters may follow."""
_LITERALS: Final = re.compile(
    rb"([\"'])[A-Za-z0-9+/_=-]{4,}\1(?:[\s\\+]{0,200}[bBrR]?([\"'])[A-Za-z0-9+/_=-]{4,}\2)+"
)
"""Adjacent literals that a program joins."""
_LITERAL: Final = re.compile(rb"[\"']([A-Za-z0-9+/_=-]{4,})[\"']")
_WIDE: Final = re.compile(rb"(?:[\t\r\n\x20-\x7e]\0){11,}[\t\r\n\x20-\x7e]?")
_MAX_MEMBERS: Final = 64
"""Of a gzip file; each costs a copy of the rest."""
_NO_DIGIT: Final = re.compile(rb"0[xX]|[^0-9a-fA-F]")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_PACKED: Final = re.compile(rb"\x1f\x8b\x08|BZh[1-9](?:1AY&SY|\x17rE8P)|\xfd7zXZ\x00|PK\x03\x04")
"""The begin of compressed data that a program may have behind its text."""
_ZLIB: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]")
_ALIGNMENTS: Final = 4


class Form(StrEnum):
    """The outermost encoding of a text."""

    PLAIN = "plain"
    REVERSED = "reversed"
    BASE64 = "base64"
    HEX = "hex"
    COMPRESSED = "compressed"
    UTF16 = "UTF-16"


@dataclass(frozen=True, slots=True)
class View:
    """A text, and how it lies in the file."""

    form: Form
    text: bytes


@dataclass(slots=True)
class Budget:
    """How many bytes may still be decoded from one file; `spent` once some were left out."""

    left: int = field(default_factory=lambda: MAX_DECODED)
    spent: bool = False

    def take(self, text: bytes) -> bool:
        """Whether a decoded text is within the budget, which it uses."""
        self.left -= max(len(text), MIN_COST)
        self.spent = self.spent or self.left < 0
        return not self.spent


def views(data: bytes, depth: int = DEPTH, budget: Budget | None = None) -> Iterator[View]:
    """Every text in `data`, as far as the budget (`MAX_DECODED` by default) goes. Encodings that do not decode are left out.

    >>> [v.form.value for v in views(base64.b64encode(b"the answer is forty-two"))][:1]
    ['plain']
    >>> any(v.text == b"the answer is forty-two" for v in views(base64.b64encode(b"the answer is forty-two")))
    True
    """
    yield View(Form.PLAIN, data)
    yield View(Form.REVERSED, backwards := data[::-1])
    budget = budget or Budget()
    yield from _decoded(data, depth, budget)
    if depth and len(data) <= BACKWARDS_BYTES and not git_objects.is_packed(data[:16]):
        yield from (View(Form.REVERSED, inner.text) for inner in _decoded(backwards, depth - 1, budget))


def _decoded(data: bytes, depth: int, budget: Budget) -> Iterator[View]:
    if depth == 0:
        return
    inside = 0 if git_objects.is_packed(data[:16]) else depth - 1  # an object for each version of each file
    for form, texts in _READERS:
        for text in texts(data):
            if not budget.take(text):
                return
            if len(text) >= SHORT:
                yield View(form, text)
                yield View(form, text[::-1])
                for inner in _decoded(text, inside, budget):
                    yield View(form, inner.text)


def _base64(data: bytes) -> Iterator[bytes]:
    yield from _of_base64(data)
    for found in _LITERALS.finditer(data):
        yield from _of_base64(b"".join(_LITERAL.findall(found[0])))


def _wide(data: bytes) -> Iterator[bytes]:
    """The ASCII characters of UTF-16, of both byte orders."""
    for found in _WIDE.finditer(data):
        yield found[0][::2]


def _of_base64(data: bytes) -> Iterator[bytes]:
    for found in _BASE64.finditer(data):
        run = re.sub(rb"\s", b"", found[0]).translate(_URL_SAFE)
        if run.islower() and run.translate(None, b"+/").isalpha():
            continue  # a name: of a million texts, encoded, two are like it
        for at in range(_ALIGNMENTS):  # a name may stand in front without a separator
            part = run[at : len(run) - (len(run) - at) % 4 or None]
            tail = run[at + len(part) :]
            try:
                yield base64.b64decode(part) + (
                    base64.b64decode(tail + b"=" * (4 - len(tail))) if len(tail) > 1 else b""
                )
            except (binascii.Error, ValueError):
                continue


def _hex(data: bytes) -> Iterator[bytes]:
    for pattern in _HEX:
        for found in pattern.finditer(data):
            digits = _NO_DIGIT.sub(b"", found[0].replace(b"\\x", b""))
            yield bytes.fromhex(digits[: len(digits) // 2 * 2].decode())
    lines = [_NO_DIGIT.sub(b"", line)[:_DUMPED] for line in _DUMP.findall(data)]
    if lines:
        yield bytes.fromhex(b"".join(line[: len(line) // 2 * 2] for line in lines).decode())


def _decompressed(data: bytes) -> Iterator[bytes]:
    if git_objects.is_packed(data[:16]):
        yield from _of_pack(data)
    elif data[257:262] == b"ustar":
        with suppress(Exception):  # whatever a lying header makes the readers of the standard library raise
            yield from _untarred(data)
    elif _PACKED.match(data) or _ZLIB.match(data):
        yield from _unpacked(data)
    else:  # behind the head of a script
        zipped = False
        for found in islice(_PACKED.finditer(data), _MAX_MEMBERS):
            is_zip = data.startswith(b"PK\x03\x04", found.start())
            if not (is_zip and zipped):  # one reading has all members
                yield from _unpacked(data[found.start() :])
            zipped = zipped or is_zip


def _unpacked(data: bytes) -> Iterator[bytes]:
    """The texts of compressed data."""
    if data[:3] == b"BZh":
        with bz2.BZ2File(io.BytesIO(data)) as packed:
            yield from _pieces(_read(packed))
    elif data[:6] == b"\xfd7zXZ\0":
        with lzma.LZMAFile(io.BytesIO(data)) as packed_xz:
            yield from _pieces(_read(packed_xz))
    elif data[:4] == b"PK\x03\x04":
        with suppress(Exception):
            yield from _unzipped(data)
    else:
        yield from _pieces(_members(data))


def _pieces(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Texts as one, in pieces that overlap."""
    piece, fresh = bytearray(), False
    for text in texts:
        piece += text
        fresh = True
        if len(piece) >= MAX_BYTES:
            yield bytes(piece)
            del piece[:-OVERLAP]
            fresh = False
    if fresh:
        yield bytes(piece)


def _read(file: IO[bytes]) -> Iterator[bytes]:
    """A file's bytes, as far as they can be read."""
    with suppress(Exception):
        while text := file.read(_CHUNK):
            yield text


def _members(data: bytes) -> Iterator[bytes]:
    """The members of a gzip file one after the other, or a zlib stream, as far as they decode."""
    with suppress(zlib.error):
        for _ in range(_MAX_MEMBERS):
            stream = zlib.decompressobj(wbits=47)
            while data and not stream.eof:
                yield stream.decompress(data, _CHUNK)
                data = stream.unconsumed_tail
            data = stream.unused_data.lstrip(b"\0")
            if not data:
                break


def _of_pack(data: bytes) -> Iterator[bytes]:
    """The objects of a git repository, or of a damaged pack the streams that can be read."""
    try:
        yield from git_objects.packed(data)
    except ValueError:
        for found in _ZLIB.finditer(data):
            with suppress(zlib.error):
                yield _inflated(data, found.start())


def _inflated(data: bytes, at: int) -> bytes:
    """The stream that begins at a place. It is fed in small pieces: the library copies what follows the end of a stream."""
    stream, out = zlib.decompressobj(), bytearray()
    while at < len(data) and not stream.eof and len(out) < MAX_BYTES:
        out += stream.decompress(data[at : at + _PIECE], MAX_BYTES - len(out))
        at += _PIECE
    return bytes(out)


def _untarred(data: bytes) -> Iterator[bytes]:
    last = -1
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if member.offset <= last:  # a negative size leads back (CVE-2025-8194)
                return
            last = member.offset
            file = archive.extractfile(member) if member.isreg() else None
            if file is not None:
                yield from _pieces(_read(file))


def _unzipped(data: bytes) -> Iterator[bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            with suppress(Exception), archive.open(member) as file:  # the others may be whole
                yield from _pieces(_read(file))


_READERS: Final = (
    (Form.COMPRESSED, _decompressed),
    (Form.HEX, _hex),
    (Form.BASE64, _base64),
    (Form.UTF16, _wide),
)
