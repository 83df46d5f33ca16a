"""Quotes foreign text in error sentences: on one line, and short enough to read."""

import re
from typing import Any, Final

MAX_QUOTED: Final = 80
"""Characters of one quoted value."""
_MAX_WORD: Final = 256
"""Longer words of a sentence are cut: no name in a sentence needs that length."""
_WORD: Final = re.compile(rf"\S{{{_MAX_WORD + 1},}}")


def quoted(value: Any, most: int = MAX_QUOTED) -> str:
    """The repr of `value` on one line, cut after `most` characters.

    >>> quoted("a name"), quoted(7), quoted("x" * 5000, 8), quoted(10**5000)
    ("'a name'", '7', "'xxxxxxxx…'", '<int>')
    >>> print(quoted("it's a long one", 4))
    "it's…"
    """
    if isinstance(value, str | bytes):
        begin = repr(value[:most])
        return begin if len(value) <= most else f"{begin[:-1]}…{begin[-1]}"
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except ValueError:  # of a number with thousands of digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[:most]}…"


def cut(text: str, most: int = MAX_QUOTED) -> str:
    """`text`, cut after `most` characters.

    >>> cut("models/tiny"), cut("x" * 5000, 4)
    ('models/tiny', 'xxxx…')
    """
    return text if len(text) <= most else f"{text[:most]}…"


def cut_to(text: str, most: int) -> str:
    """`text` in at most `most` characters; the last one is a mark if it was cut.

    >>> cut_to("models/tiny", 11), cut_to("models/tiny", 7)
    ('models/tiny', 'models…')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def readable(sentence: str) -> str:
    """A sentence with its over-long words cut: paths, URLs and names that users supplied.

    >>> readable("no run named " + "x" * 5000).count("x")
    80
    """
    return _WORD.sub(lambda found: cut(found[0]), sentence)
