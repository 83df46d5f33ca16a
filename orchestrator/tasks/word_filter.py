"""Which words a text has, in little space. It shows fast that a text cannot hold another one.

A *word* is a run of 4 to 64 ASCII letters, digits and underscores with other bytes around it. A text that holds another one has each of its *inner*
words, those that touch neither of its ends. The words lie in a Bloom filter with one hash function (Bloom 1970), so `may_hold` errs to one side only.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

_MAX_WORD: Final = 64
_WORD: Final = re.compile(rb"(?<!\w)\w{4,%d}(?!\w)" % _MAX_WORD)
_OF_WORDS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_MIN_BITS: Final = 1 << 10
_MAX_BITS: Final = 1 << 22


def inner_words(text: bytes) -> frozenset[int]:
    """Hashes of the words of `text` that touch neither its first nor its last byte."""
    return frozenset(
        zlib.crc32(word) for word in _WORD.findall(text[_run(text) : len(text) - _last_run(text)])
    )


class WordFilter:
    """The words of a text that comes in pieces. `size`: about how many bytes it has; another number makes the filter larger or less exact."""

    __slots__ = ("_bits", "_mask")

    def __init__(self, pieces: Iterable[bytes], size: int) -> None:
        count = min(max(1 << (size // 2).bit_length(), _MIN_BITS), _MAX_BITS)
        self._mask = count - 1
        self._bits = bytearray(count >> 3)
        for piece in _cut_between_words(pieces):
            for word in set(_WORD.findall(piece)):
                at = zlib.crc32(word) & self._mask
                self._bits[at >> 3] |= 1 << (at & 7)

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self._bits)

    def may_hold(self, inner: Iterable[int]) -> bool:
        """Whether the text may hold another one with these `inner_words`. Only a True can be wrong."""
        bits, mask = self._bits, self._mask
        return all(bits[(word & mask) >> 3] & 1 << (word & 7) for word in inner)


def _cut_between_words(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same text, cut so that no word lies in two pieces."""
    rest = b""
    for piece in pieces:
        text = rest + piece
        run = _last_run(text)
        yield text[: len(text) - run]
        rest = text[len(text) - min(run, _MAX_WORD + 1) :]  # a longer run cannot become a word
    yield rest


def _run(text: bytes) -> int:
    """Bytes of the run at the start."""
    return len(text) - len(text.lstrip(_OF_WORDS))


def _last_run(text: bytes) -> int:
    return len(text) - len(text.rstrip(_OF_WORDS))
