"""Random draws that respect the split: with any seed, no draw for held-out tasks can be a draw for training.

A text belongs to the held-out side when its digest falls into one of five buckets. Arguments and file contents are drawn
until they fall on the wanted side, so the sides are disjoint by construction, not by chance or by a list.
"""

import hashlib
import random
from collections.abc import Callable
from typing import Final, TypeVar

from orchestrator.tasks.suite.words import EXTENSIONS, WORDS

T = TypeVar("T")

_BUCKETS: Final = 5
_MAX_DRAWS: Final = 10_000


def is_heldout(text: str) -> bool:
    """Whether `text` (a file content, or a family with its arguments) may occur only in held-out tasks: one in five."""
    return hashlib.sha256(text.encode()).digest()[0] % _BUCKETS == 0


class Dice:
    """A seeded source of words, names and contents for one side of the split."""

    def __init__(self, seed: str, heldout: bool) -> None:
        self.random = random.Random(seed)
        self.heldout = heldout

    def words(self, count: int) -> list[str]:
        """Distinct words."""
        return self.random.sample(WORDS, count)

    def extension(self) -> str:
        """One of the data files' extensions."""
        return self.random.choice(EXTENSIONS)

    def file_names(self, count: int) -> list[str]:
        """Names of data files with distinct stems, such as `oak.txt`."""
        return [f"{word}.{self.extension()}" for word in self.words(count)]

    def number(self, low: int, high: int) -> int:
        """Uniform in [low, high]."""
        return self.random.randint(low, high)

    def lines(self, low: int, high: int, words: int = 3) -> str:
        """Between `low` and `high` different lines of one to `words` words each, of this side."""
        return self.content(lambda: self._lines(self.number(low, high), words))

    def content(self, draw: Callable[[], str], accept: Callable[[str], bool] = lambda _: True) -> str:
        """Draw a file content until it is of this side and `accept` returns true."""
        return self.until(draw, lambda text: is_heldout(text) == self.heldout and accept(text))

    def until(self, draw: Callable[[], T], accept: Callable[[T], bool]) -> T:
        """Draw until `accept` returns true. ValueError when no draw fits after many tries."""
        for _ in range(_MAX_DRAWS):
            drawn = draw()
            if accept(drawn):
                return drawn
        raise ValueError(
            f"no draw was accepted in {_MAX_DRAWS} tries: too many tasks requested of this family"
        )

    def _lines(self, count: int, words: int) -> str:
        lines: list[str] = []
        while len(lines) < count:
            line = " ".join(self.random.choices(WORDS, k=self.number(1, words)))
            if line not in lines:
                lines.append(line)
        return "".join(line + "\n" for line in lines)
