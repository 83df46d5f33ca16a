"""Drawn texts that JSON, a terminal, a database or a file system may not expect. Standard library only: a program in a sandbox imports it."""

import math
import random
from collections.abc import Iterator

LONGEST = 100_000  # characters
LONGEST_NAME = 255  # bytes of a file's name
FILES = 120
ALPHABETS = {
    "incompressible": [chr(code) for code in range(0x20, 0x7F)],
    "multi-byte": [*"\u00e9\u0416\u05d0\u4e2d\u20ac\u0301\U0001f30d\U0001f469\u200d\U00020000\U0010ffff"],
    "control characters": [*map(chr, range(1, 0x20)), *"\x7f\x85\x9b\u2028\u2029\u202e\ufeff"],
    "lone surrogates": ["a", "\ud800", "\udbff", "\udc00", "\udfff"],
    "U+0000": ["\0", "a", "b"],
}


def length(dice: random.Random, longest: int = LONGEST) -> int:
    """From 1 to `longest`, as often from 1 to 10 as from 10,000 to 100,000."""
    return round(math.exp(dice.uniform(0, math.log(longest))))


def text(dice: random.Random, kind: str, characters: int) -> str:
    return "".join(dice.choices(ALPHABETS[kind], k=characters))


def texts(dice: random.Random, longest: int = LONGEST) -> Iterator[str]:
    """One of each kind, of one character, and of the longest."""
    for kind in ALPHABETS:
        yield text(dice, kind, length(dice, longest))
    for characters in (1, longest):
        yield text(dice, dice.choice([*ALPHABETS]), characters)


def file_name(dice: random.Random) -> bytes:
    """Any bytes but `/` and NUL."""
    while True:
        name = bytes(dice.choices([*range(1, 0x2F), *range(0x30, 0x100)], k=length(dice, LONGEST_NAME)))
        if name not in (b".", b".."):
            return name
