"""Text that people and programs write, as they save it: with a byte order mark, with the line ends of Windows, in another encoding.

Files of people: the mark of UTF-8 is removed and CRLF becomes LF. Another encoding is refused by its name, in one sentence that names the file.
Files of programs (`left_text`): every encoding with a mark is read.
"""

from __future__ import annotations

import codecs
import tomllib
from pathlib import Path
from typing import Any, Final

from sandboxes.shell_lines import for_a_shell, with_line_feeds, without_payload

_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # it begins like the mark of UTF-16
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_MARK: Final = "\ufeff"
_END_OF_DOS: Final = "\x1a"
_BEGIN: Final = 64
_SHEBANG: Final = b"#!"
_MAX_DEPTH: Final = 64  # tables and lists within one another: what reads them later recurses


def text_of(data: bytes, name: str) -> str:
    """The text of a file, without a byte order mark, its lines ended by LF. ValueError for another encoding than UTF-8; `name` is the file in it.

    >>> text_of(b"\\xef\\xbb\\xbfname = 1\\r\\n", "a.toml")
    'name = 1\\n'
    >>> text_of("é".encode("latin-1"), "a.toml")
    Traceback (most recent call last):
    ValueError: a.toml is not UTF-8 text (byte 0): save it as UTF-8
    """
    plain = _without_mark(data, name)
    try:
        return plain.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        at = error.start + len(data) - len(plain)
        raise ValueError(f"{name} is not UTF-8 text (byte {at}): save it as UTF-8") from None


def lines_of(text: str) -> list[str]:
    """The lines of a text, as shells and builders of images count them: LF or CRLF ends one, and no other character does.

    >>> lines_of("a\\fb\\u2028c\\r\\nd\\n")
    ['a\\x0cb\\u2028c', 'd']
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def left_text(data: bytes) -> str:
    """The text that a program left: UTF-8, or UTF-16 and UTF-32 with a byte order mark. Invalid bytes are replaced.

    >>> left_text(b"\\xef\\xbb\\xbf1\\r\\n"), left_text("1".encode("utf-16"))
    ('1\\r\\n', '1')
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def read_text(path: Path) -> str:
    """`text_of` a file. OSError if it cannot be read."""
    return text_of(path.read_bytes(), str(path))


def toml_text(data: bytes, name: str) -> str:
    """`text_of` a TOML file, without the Ctrl-Z with which DOS ends files. ValueError also for what TOML calls an invalid statement: a second byte
    order mark, and CR without LF.

    >>> toml_text(b"a = 1\\r\\n\\x1a", "a.toml")
    'a = 1\\n'
    >>> toml_text(b"a = 1\\rb = 2\\r", "a.toml")
    Traceback (most recent call last):
    ValueError: a.toml ends its lines in CR alone: save it with the line ends of Unix (LF)
    """
    text = text_of(data, name)
    if text.startswith(_MARK):
        raise ValueError(f"{name} has more than one byte order mark: save it as UTF-8 without one")
    before, found, _ = text.partition("\r")
    if found and "\n" not in text:
        raise ValueError(f"{name} ends its lines in CR alone: save it with the line ends of Unix (LF)")
    if found:
        line = before.count("\n") + 1
        raise ValueError(
            f"{name} has a CR without LF in line {line}: save it with the line ends of Unix (LF)"
        )
    body = text.rstrip(f" \n{_END_OF_DOS}")
    return f"{body}\n" if _END_OF_DOS in text[len(body) :] else text


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. OSError if it cannot be read; ValueError, one sentence that names it, if it is not TOML."""
    text = toml_text(path.read_bytes(), str(path))
    try:
        tables = tomllib.loads(text)
        if _is_deep(tables):
            raise RecursionError
    except RecursionError:
        raise ValueError(f"{path} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # also for a number that is too long
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    return tables


def _is_deep(tables: dict[str, Any]) -> bool:
    """Whether tables and lists lie deeper within one another than anything reads. A key with many dots makes such tables."""
    level: list[Any] = [tables]
    for _ in range(_MAX_DEPTH):
        children = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def script_of(data: bytes, name: str, *, by_shell: bool = False) -> bytes:
    """A script as its interpreter can run it: without a byte order mark, and with LF where its first line ends in CRLF. Its other bytes stay as they
    are, but the commands of a shell script end in LF (`with_line_feeds`). What a script carries after its text (`without_payload`) stays as it is.
    `by_shell`: without `#!`, it is such a script. ValueError for UTF-16 and UTF-32.

    >>> script_of(b"\\xef\\xbb\\xbf#!/bin/bash\\r\\necho 1\\r\\n", "test.sh")
    b'#!/bin/bash\\necho 1\\n'
    """
    plain = _without_mark(data, name)
    text = without_payload(plain)
    first = text.partition(b"\n")[0]
    if first.endswith(b"\r"):
        written = text.replace(b"\r\n", b"\n")
    else:
        written = with_line_feeds(text) if for_a_shell(first) or (by_shell and not is_script(plain)) else text
    return written + plain[len(text) :]


def is_script(data: bytes) -> bool:
    """Whether a file names its interpreter in its first line; a byte order mark may precede it."""
    return data.removeprefix(codecs.BOM_UTF8).startswith(_SHEBANG)


def _without_mark(data: bytes, name: str) -> bytes:
    """ValueError for UTF-16 and UTF-32, which Windows also writes without a mark."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            raise ValueError(f"{name} is {encoding} text: save it as UTF-8")
    begin = data[:_BEGIN]
    if len(begin) >= 4 and not (any(begin[::2]) and any(begin[1::2])):
        raise ValueError(f"{name} looks like UTF-16 text (every other byte is 0): save it as UTF-8")
    return data.removeprefix(codecs.BOM_UTF8)
