"""The lines of a Dockerfile that make one instruction, by Docker's rules: comments and blank lines neither begin, continue nor end one.
Here-documents follow the instruction that opens them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_TAKES_DOCUMENTS = re.compile(r"(?:ONBUILD\s+)?(?:RUN|COPY|ADD)\s", re.IGNORECASE)
_WORD = r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\|;&()<>])+"""
_BEGINNING = re.compile(rf"\d*(?P<beginning><<(?:(?P<dash>-)|[ \t]*)(?P<word>{_WORD}))(?=$|[\s|;&)])")
"""As BuildKit reads it since 2023: blanks may follow `<<`, and none `<<-`."""
_QUOTING = re.compile(r"""\\(.)|['"]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`beginning`: as written, `<<"EOF"` or `<< EOF`; `end`: the word that ends it, without quotes; `is_quoted`: nothing is expanded in it;
    `lines`: with the last one."""

    beginning: str
    end: str
    is_quoted: bool
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One instruction. `first`, `last`: its lines, from 0; `after`: the line after its here-documents; `text`: continuation lines joined."""

    first: int
    last: int
    after: int
    text: str
    documents: tuple[Document, ...] = ()


def is_passed_over(line: str) -> bool:
    """Whether a line is a comment, or blank."""
    return not (bare := line.strip()) or bare.startswith("#")


def last_line(lines: Sequence[str], at: int) -> int:
    """The last line of the instruction that begins at `at`; `at` itself for a line that is passed over."""
    if is_passed_over(lines[at]):
        return at
    last = at
    while last + 1 < len(lines) and (is_passed_over(lines[last]) or _goes_on(lines[last])):
        last += 1
    return last


def instructions(lines: Sequence[str]) -> Iterator[Lines]:
    """Those of a Dockerfile, in order. A here-document without an end is none: its line is an instruction like any other."""
    ends = _Ends(lines)
    at = 0
    while at < len(lines):
        last = last_line(lines, at)
        text = "".join(
            line.rstrip()[:-1] if _goes_on(line) else line
            for line in lines[at : last + 1]
            if not is_passed_over(line)
        ).strip()
        documents = tuple(_documents(text, lines, last + 1, ends))
        after = last + 1 + sum(len(each.lines) for each in documents)
        if text:
            yield Lines(first=at, last=last, after=after, text=text, documents=documents)
        at = after


def _goes_on(line: str) -> bool:
    return line.rstrip().endswith("\\")


class _Ends:
    """Finds the line that ends a here-document, however many there are."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._found: dict[bool, Mapping[str, list[int]]] = {}

    def after(self, start: int, word: str, *, indented: bool) -> int | None:
        """The first line from `start` on that is the word alone, with tabs before it if `indented`; None: none is."""
        if indented not in self._found:
            table: dict[str, list[int]] = {}
            for at, line in enumerate(self._lines):
                table.setdefault(line.lstrip("\t") if indented else line, []).append(at)
            self._found[indented] = table
        places = self._found[indented].get(word, [])
        at = bisect_left(places, start)
        return places[at] if at < len(places) else None


def _documents(text: str, lines: Sequence[str], start: int, ends: _Ends) -> Iterator[Document]:
    if "<<" not in text or not _TAKES_DOCUMENTS.match(text):
        return
    for found in _beginnings(text):
        end = _QUOTING.sub(lambda quote: quote[1] or "", found["word"])
        last = ends.after(start, end, indented=bool(found["dash"]))
        if last is None:
            return
        yield Document(
            beginning=found["beginning"],
            end=end,
            is_quoted=end != found["word"],
            lines=list(lines[start : last + 1]),
        )
        start = last + 1


def _beginnings(text: str) -> Iterator[re.Match[str]]:
    """Where words outside of quotes open here-documents."""
    quote, begins, at = "", False, 0
    while at < len(text):
        char = text[at]
        if begins and (found := _BEGINNING.match(text, at)):
            yield found
            begins, at = False, found.end()
            continue
        if char == "\\" and quote != "'":
            begins, at = False, at + 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        begins, at = not quote and (char.isspace() or char in "|;&("), at + 1
