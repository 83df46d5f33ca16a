"""Makes `pieces.txt`, the list from which the tokenizer is built.

A *piece* is a unit that the tokenizer's split leaves whole: a run of letters, one digit, a run of newlines or a run of anything
else. Every word that occurs in the texts becomes a piece (so that it is one token); punctuation runs become pieces
when they occur at least twice. The file holds one JSON string per line, most frequent first, ties by the string, so that
the same texts give the same bytes.

    python -m trainer.policy.vocabulary TEXTS.jsonl      (one JSON string per line: instructions, commands, observations)
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PIECES = Path(__file__).with_name("pieces.txt")
SPLIT = r"[A-Za-z]+|[0-9]|\n+|[^A-Za-z0-9\n]+"


def pieces_of(texts: Iterable[str], *, most: int = 400) -> list[str]:
    """The pieces worth a token of their own, most frequent first.

    Single characters in ASCII are left out: they are byte tokens already. At most `most` pieces.
    Raises ValueError if the words alone do not fit, since a small policy cannot copy a word that falls apart into bytes.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece in re.findall(SPLIT, text) if len(piece.encode()) > 1)
    ordered = sorted(counts, key=lambda piece: (-counts[piece], piece))
    words = [piece for piece in ordered if piece.isalpha()]
    others = [piece for piece in ordered if not piece.isalpha() and counts[piece] > 1]
    if len(words) > most:
        raise ValueError(
            f"{len(words)} different words do not fit into {most} pieces: raise `most` or use fewer words"
        )
    selected = set(words) | set(others[: most - len(words)])
    return [piece for piece in ordered if piece in selected]


def read_pieces(path: Path = PIECES) -> list[str]:
    """The pieces in file order. Raises ValueError if a line is not a JSON string or occurs twice."""
    pieces = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not all(isinstance(piece, str) for piece in pieces) or len(set(pieces)) != len(pieces):
        raise ValueError(
            f"{path}: every line must be a different JSON string; remake it with trainer.policy.vocabulary"
        )
    return pieces


def write_pieces(pieces: Iterable[str], path: Path = PIECES) -> None:
    path.write_text("".join(json.dumps(piece) + "\n" for piece in pieces), encoding="utf-8")


def main(arguments: list[str]) -> None:
    lines = Path(arguments[0]).read_text(encoding="utf-8").splitlines()
    pieces = pieces_of(json.loads(line) for line in lines)
    write_pieces(pieces)
    print(f"{PIECES}: {len(pieces)} pieces")


if __name__ == "__main__":
    main(sys.argv[1:])
