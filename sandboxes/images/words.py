"""The words of a Dockerfile's instructions: quotes, and variables with their defaults, as Docker reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BARE = re.compile(r"\$([A-Za-z_]\w*)")
_BRACED = re.compile(r"\$\{([A-Za-z_]\w*)(\}|:?[-+?])")
_MAX_DEPTH = 40
"""How deep defaults may lie in defaults."""
MAX_ARGUMENT = 4096
"""Characters of an ARG before the first FROM: no image has a longer name."""


class OpenQuoteError(ValueError):
    """A quote without its end; its text is the quote."""


class UnreadableError(ValueError):
    """A `${…}` of a form that is not known, or whose own condition refuses it; its text begins there."""


class TooLongError(ValueError):
    """Variables make a text longer than it may be."""


def split(text: str) -> tuple[str, ...]:
    """Split at white space, but not within quotes or after a backslash; both stay in the words. OpenQuoteError."""
    words, word, quote, i = [], "", "", 0
    while i < len(text):
        char = text[i]
        if char == "\\" and quote != "'" and i + 1 < len(text):
            word += text[i : i + 2]
            i += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            words += [word] if word else []
            word, i = "", i + 1
            continue
        word += char
        i += 1
    if quote:
        raise OpenQuoteError(quote)
    return tuple([*words, word] if word else words)


def expand(word: str, variables: Mapping[str, str | None], most: int) -> str:
    """A word without its quotes, with `$NAME`, `${NAME}` and the forms `-`, `+`, `?`, `:-`, `:+`, `:?` expanded, also within one another. A variable
    that `variables` has not, or has as None, is unset. Nothing is expanded within single quotes.

    UnreadableError for other forms of `${…}`, TooLongError if variables make more than `most` characters of it.

    >>> expand('${A:-"x y"}-${B-1}${B+2}', {"A": "", "B": ""}, 100)
    'x y-2'
    """
    return _Reader(word, variables, most).until("")


class _Reader:
    def __init__(self, word: str, variables: Mapping[str, str | None], most: int) -> None:
        self._word, self._variables, self._most = word, variables, most
        self._at = self._depth = 0

    def until(self, end: str) -> str:
        """The text up to a character outside of quotes, or to the end of the word."""
        parts: list[str] = []
        quote, length, word = "", 0, self._word
        while self._at < len(word):
            char, part = word[self._at], ""
            if char == end and not quote:
                break
            if quote == "'" or char not in "\\$'\"" or (quote and char == "'"):
                quote, part = ("", "") if char == quote else (quote, char)
                self._at += 1
            elif char in "'\"":
                quote = "" if char == quote else char
                self._at += 1
            elif char == "\\":
                part = self._escaped(quote)
            else:
                part = self._referred()
                if length + len(part) > self._most:
                    raise TooLongError(f"more than {self._most:,} characters")
            parts.append(part)
            length += len(part)
        return "".join(parts)

    def _escaped(self, quote: str) -> str:
        char = self._word[self._at + 1 : self._at + 2]
        self._at += 2
        return f"\\{char}" if not char or (quote and char not in '"$\\') else char

    def _referred(self) -> str:
        start = self._at
        if found := _BARE.match(self._word, start):
            self._at = found.end()
            return self._variables.get(found[1]) or ""
        found = _BRACED.match(self._word, start)
        if found is None:
            if self._word.startswith("${", start):
                raise UnreadableError(self._word[start:])
            self._at += 1
            return "$"
        self._at = found.end()
        value, operator = self._variables.get(found[1]), found[2]
        if operator == "}":
            return value or ""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadableError(self._word[start:])
        other = self.until("}")
        self._depth -= 1
        if self._at >= len(self._word):
            raise UnreadableError(self._word[start:])
        self._at += 1
        is_set = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return other if is_set else ""
        if not is_set and operator.endswith("?"):
            raise UnreadableError(self._word[start:])
        return value or "" if is_set else other


class Arguments(dict[str, str]):
    """The variables of the ARG instructions before the first FROM: each knows those before it, also in one line."""

    def read(self, rest: str) -> None:
        """Take what follows the word ARG. A line that no build accepts is passed over."""
        try:
            words = split(rest)
        except OpenQuoteError:
            return
        for name, equals, value in (word.partition("=") for word in words):
            if equals:
                self[name] = self.expanded(value)

    def expanded(self, word: str) -> str:
        """A word with the variables; as written if it cannot be read. TooLongError above 4,096 characters."""
        try:
            return expand(word, self, MAX_ARGUMENT)
        except UnreadableError:
            return word
