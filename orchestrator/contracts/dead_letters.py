"""Names of dead letters: a letter for the kind and a number, such as m12 or g3."""

from enum import StrEnum

MAX_DIGITS = 18  # every such number fits a bigint


class LetterKind(StrEnum):
    """The kind of a dead letter."""

    MESSAGE = "m"
    GROUP = "g"


def parse_letter(name: str) -> tuple[LetterKind, int] | None:
    """The kind and the number of a dead letter; None: the name has another form.

    >>> parse_letter("m12"), parse_letter("x12"), parse_letter("g")
    ((<LetterKind.MESSAGE: 'm'>, 12), None, None)
    """
    kind, digits = name[:1], name[1:]
    if (
        kind not in list(LetterKind)
        or not (digits.isascii() and digits.isdigit())
        or len(digits) > MAX_DIGITS
    ):
        return None
    return LetterKind(kind), int(digits)
