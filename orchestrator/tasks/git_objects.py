"""The objects of a git repository, read without git: loose ones, packs and bundles. Nothing of the repository is run, its configuration is not read.

A pack (versions 2, 3) is a header, then its objects one after another: type and size, for a delta its base, and a zlib stream (gitformat-pack).
Objects that are deltas are resolved, so each text of the history is seen as a whole.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 256 << 20
"""Of all objects of one file together."""
_PIECE: Final = 1 << 16
_CACHE_BYTES: Final = 32 << 20
_LOOSE: Final = re.compile(r"(?:^|/)objects/[0-9a-f]{2}/(?:[0-9a-f]{38}|[0-9a-f]{62})$")
_HEADER: Final = re.compile(rb"(?:commit|tree|blob|tag) (\d{1,12})\0")
_BUNDLE: Final = re.compile(rb"# v[23] git bundle\n(?:.*\n)*?\n(?=PACK)")
_TYPES: Final = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_OFFSET_DELTA, _NAMED_DELTA = 6, 7
_WORK: Final = 4
"""Bytes that may be made, for each that may be returned: a chain of large deltas costs more than its last object."""
_NAME: Final = 20


def is_loose(path: str) -> bool:
    """Whether a path is that of a loose object."""
    return _LOOSE.search(path) is not None


def is_packed(begin: bytes) -> bool:
    """Whether a file that begins with `begin` is a pack or a bundle."""
    return begin.startswith((b"PACK\0\0\0", b"# v2 git bundle", b"# v3 git bundle"))


def loose(data: bytes, most_bytes: int = MAX_BYTES) -> bytes | None:
    """The content of a loose object; None if `data` is not a loose object. Raises `TooMuch` for one above `most_bytes`."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, max(most_bytes, 1) + 64)
    except zlib.error:
        return None
    header = _HEADER.match(text)
    if header is not None and not stream.eof:
        raise TooMuch
    return text[header.end() :] if header else None


def packed(data: bytes, most_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """The contents of all objects of a pack or a bundle. ValueError, the end of a sentence, if it is damaged or incomplete, or
    holds more than `most_bytes`."""
    start = found.end() if (found := _BUNDLE.match(data)) else 0
    pack = _Pack(data, start, most_bytes)
    seen = 0
    for at in pack.entries:
        content = pack.content(at)
        seen += len(content)
        if seen > most_bytes:
            raise TooMuch
        yield content


class TooMuch(ValueError):
    """A pack holds more than is read of it."""

    def __init__(self) -> None:
        super().__init__(f"which have more than {MAX_BYTES >> 20} MB")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """`kind`: the type of a whole object, empty for a delta. `base`: the place of its base, or its name."""

    kind: bytes
    size: int
    base: int | bytes
    start: int


class _Pack:
    def __init__(self, data: bytes, start: int, most_bytes: int) -> None:
        self._data = memoryview(data)
        self._left = _WORK * most_bytes
        if data[start : start + 4] != b"PACK" or int.from_bytes(data[start + 4 : start + 8]) not in (2, 3):
            raise ValueError("which are no pack of version 2 or 3")
        self.entries: dict[int, _Entry] = {}
        self._names: dict[bytes, int] | None = None
        self._cache: dict[int, bytes] = {}
        self._cached = 0
        at = start + 12
        if len(data) < at:
            raise ValueError("which are cut off")
        for _ in range(int.from_bytes(data[start + 8 : start + 12])):
            entry = self._entry(at)
            self.entries[at] = entry
            at = self._end(entry)

    def _byte(self, at: int) -> int:
        if at >= len(self._data):
            raise ValueError("which are cut off")
        return self._data[at]

    def _entry(self, at: int) -> _Entry:
        begin = at
        byte = self._byte(at)
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            size |= (byte & 0x7F) << shift
            shift += 7
        at += 1
        if size > MAX_BYTES:
            raise ValueError(f"with one of more than {MAX_BYTES >> 20} MB")
        base: int | bytes = 0
        if kind == _OFFSET_DELTA:
            byte = self._byte(at)
            back = byte & 0x7F
            while byte & 0x80:
                at += 1
                byte = self._byte(at)
                back = (back + 1) << 7 | byte & 0x7F
            at += 1
            base = begin - back
            if base not in self.entries:
                raise ValueError("which are damaged")
        elif kind == _NAMED_DELTA:
            base = bytes(self._data[at : at + _NAME])
            at += _NAME
        elif kind not in _TYPES:
            raise ValueError("which are damaged")
        return _Entry(kind=_TYPES.get(kind, b""), size=size, base=base, start=at)

    def _inflate(self, entry: _Entry, *, keep: bool) -> tuple[bytes, int]:
        """(the object's stream, its end). The stream is empty without `keep`."""
        stream, at, out, length = zlib.decompressobj(), entry.start, bytearray(), 0
        try:
            while not stream.eof:
                piece = self._data[at : at + _PIECE]
                if not piece:
                    raise ValueError("which are cut off")
                at += len(piece)
                while True:
                    text = stream.decompress(piece, entry.size + 1 - length)
                    length += len(text)
                    if length > entry.size:
                        raise ValueError("which are damaged")
                    if keep:
                        out += text
                    piece = memoryview(stream.unconsumed_tail)
                    if stream.eof or not piece:
                        break
        except zlib.error as error:
            raise ValueError("which are damaged") from error
        if length != entry.size:
            raise ValueError("which are damaged")
        return bytes(out), at - len(stream.unused_data)

    def _end(self, entry: _Entry) -> int:
        return self._inflate(entry, keep=False)[1]

    def content(self, at: int) -> bytes:
        """The object at a place, deltas resolved."""
        chain = {at: None}
        last = at
        while last not in self._cache and not (entry := self.entries[last]).kind:
            last = self._place(entry.base) if isinstance(entry.base, bytes) else entry.base
            if last in chain:
                raise ValueError("which are damaged")
            chain[last] = None
        content: bytes | None = None
        for place in reversed(chain):
            if place in self._cache:
                content = self._cache[place]
                continue
            stream = self._inflate(self.entries[place], keep=True)[0]
            content = stream if content is None else _patched(content, stream)
            self._left -= len(content)
            if self._left < 0:
                raise TooMuch
            self._keep(place, content)
        assert content is not None
        return content

    def _keep(self, at: int, content: bytes) -> None:
        self._cache[at] = content
        self._cached += len(content)
        while self._cached > _CACHE_BYTES:
            self._cached -= len(self._cache.pop(next(iter(self._cache))))

    def _place(self, name: bytes) -> int:
        """Where the object of that name begins. Its base may itself be a delta, so all names are made at the first question."""
        if self._names is None:
            self._names, done = {}, set[int]()
            waiting, before = list(self.entries), 0
            while len(waiting) != before:
                before = len(waiting)
                self._left -= before
                for at in waiting:
                    entry = self.entries[at]
                    if entry.kind or (entry.base in done) or (entry.base in self._names):
                        content = self.content(at)
                        header = self._kind(at) + b" %d\0" % len(content)
                        self._names[hashlib.sha1(header + content, usedforsecurity=False).digest()] = at
                        done.add(at)
                waiting = [at for at in waiting if at not in done]
        if name not in self._names:
            raise ValueError("which build on others that are not there")
        return self._names[name]

    def _kind(self, at: int) -> bytes:
        entry = self.entries[at]
        while not entry.kind:
            entry = self.entries[self._place(entry.base) if isinstance(entry.base, bytes) else entry.base]
        return entry.kind


def _patched(base: bytes, delta: bytes) -> bytes:
    """The object that a delta makes of its base."""
    at = 0

    def size() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = delta[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    try:
        before, after = size(), size()
        if before != len(base) or after > MAX_BYTES:
            raise ValueError("which are damaged")
        out = bytearray()
        while at < len(delta):
            order = delta[at]
            at += 1
            if order & 0x80:
                offset = length = 0
                for bit in range(4):
                    if order & 1 << bit:
                        offset |= delta[at] << 8 * bit
                        at += 1
                for bit in range(3):
                    if order & 0x10 << bit:
                        length |= delta[at] << 8 * bit
                        at += 1
                length = length or 0x10000
                if len(out) + length > after or offset + length > before:
                    raise ValueError("which are damaged")
                out += base[offset : offset + length]
            elif order:
                out += delta[at : at + order]
                at += order
            else:
                raise ValueError("which are damaged")
    except IndexError as error:
        raise ValueError("which are cut off") from error
    if len(out) != after:
        raise ValueError("which are damaged")
    return bytes(out)
