"""Which of many texts stand in another, in a time that hardly grows with their number.

Each text is known by the eight bytes in it that fewest others share. One pass over the other text finds these, and only there the whole is compared.
Where texts share so much that this takes long, each is searched for by itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

PIECE: Final = 8
_TRIED: Final = 48
"""Places of a text that are compared with those of others."""
_COMPARED: Final = 4
"""Comparisons for each text, beyond one for each byte, after which a search for each takes less time."""
_SMALL: Final = 512
"""Bytes of a text up to which a loop is faster than arrays."""
_BITS: Final = 22
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing
_SHIFT: Final = np.uint64(64 - _BITS)


class Needles:
    """Texts to search for, each of at least `PIECE` bytes."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._wanted = wanted = frozenset(texts)
        self._least = min(map(len, wanted), default=PIECE)
        assert self._least >= PIECE
        shared = Counter(text[at : at + PIECE] for text in wanted for at in _places(text))
        self._pieces: dict[bytes, list[tuple[int, bytes]]] = {}
        for text in wanted:
            at = min(_places(text), key=lambda at, text=text: shared[text[at : at + PIECE]])  # type: ignore[misc]
            self._pieces.setdefault(text[at : at + PIECE], []).append((at, text))
        self._table = np.zeros(1 << _BITS, dtype=np.bool_)
        if self._pieces:
            self._table[_slots(np.frombuffer(b"".join(self._pieces), dtype="<u8"))] = True

    def within(self, text: bytes) -> set[bytes]:
        """Those that stand in `text`."""
        found: set[bytes] = set()
        if not self._pieces or len(text) < self._least:
            return found
        left = _COMPARED * len(self._wanted) + len(text)
        for at in range(len(text) - PIECE + 1) if len(text) <= _SMALL else self._likely(text):
            here = self._pieces.get(text[at : at + PIECE], ())
            left -= len(here)
            if left < 0:
                return {needle for needle in self._wanted if needle in text}
            for offset, needle in here:
                if at >= offset and text.startswith(needle, at - offset):
                    found.add(needle)
        return found

    def _likely(self, text: bytes) -> Iterator[int]:
        """Where a piece may stand."""
        for first in range(PIECE):
            words = np.frombuffer(text, dtype="<u8", count=(len(text) - first) // PIECE, offset=first)
            for number in np.flatnonzero(self._table[_slots(words)]).tolist():
                yield first + PIECE * number


def _slots(
    words: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return (words * _MULTIPLIER) >> _SHIFT


def _places(text: bytes) -> list[int]:
    last = len(text) - PIECE
    return [*range(0, last, max(last // _TRIED, 1)), last]
