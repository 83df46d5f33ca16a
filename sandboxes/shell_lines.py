"""The line ends of shell scripts: commands that end in CRLF get LF, and what a shell cannot read at all is named.

Most shells take the CR of Windows as the last letter of a command's last word. In a string or a here-document of a command that ends in LF, CRLF is
content and stays.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    rb"""
      (?P<joined> \\ \r\n)                                   # a line that goes on in the next one
    | \\ .
    | \$' (?: \\. | [^'\\] )* '
    | ' [^']* '
    | " (?: \\. | [^"\\] )* "
    | (?<! [^\s;&|()] ) \# [^\r\n]*                          # a comment
    | <<<
    | << (?P<tabs>-?) [ \t]* (?: ' (?P<single>[^'\r\n]+) ' | " (?P<double>[^"\r\n]+) " | \\? (?P<bare>[A-Za-z_][\w.-]*) )
    | (?P<end> \r?\n)
    | [^\\'"$#<\r\n]+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_SHELL: Final = re.compile(
    rb"#![ \t]*(?:\S*/)?(?:env[ \t]+(?:-S[ \t]+)?(?:\S*/)?)?(?:ba|da|k|z|a)?sh(?:\s|$)"
)
_FIRST: Final = b"#!"
_OF_NO_TEXT: Final = re.compile(rb"[\0-\x06\x0e-\x19\x1c-\x1f]")
"""Control bytes, without those of terminals and the Ctrl-Z of DOS."""


def for_a_shell(first: bytes) -> bool:
    """Whether a script's first line names a shell.

    >>> for_a_shell(b"#!/usr/bin/env bash"), for_a_shell(b"#!/bin/sh -e"), for_a_shell(b"#!/usr/bin/python3")
    (True, True, False)
    """
    return _SHELL.match(first) is not None


def with_line_feeds(script: bytes) -> bytes:
    """A shell script whose commands end in LF. The end of a command also decides for its strings and here-documents.

    >>> with_line_feeds(b"#!/bin/sh\\necho 1 > a\\r\\nprintf 'b\\r\\n' > c\\n")
    b"#!/bin/sh\\necho 1 > a\\nprintf 'b\\r\\n' > c\\n"
    """
    if b"\r\n" not in script:
        return script
    written, command, here = bytearray(), bytearray(), []
    at = 0
    while token := _TOKEN.match(script, at):
        at = token.end()
        command += b"\\\n" if token["joined"] else token[0]
        if word := token["single"] or token["double"] or token["bare"]:
            here.append((word, bool(token["tabs"])))
        if token["end"]:
            for word, tabs in here:
                begin, at = at, _after(script, at, word, tabs=tabs)
                command += script[begin:at]
            written += command.replace(b"\r\n", b"\n") if token["end"] == b"\r\n" else command
            command, here = bytearray(), []
    return bytes(written + command)


def without_payload(script: bytes) -> bytes:
    """The text of a script that carries other bytes after it, as installers do: the lines above the first control byte. All of a script in UTF-8
    without NUL is text, and so is one in another encoding without control bytes.

    >>> without_payload(b"tail -n +2 $0 | gunzip; exit\\r\\n\\x1f\\x8b\\x08\\0\\r\\n")
    b'tail -n +2 $0 | gunzip; exit\\r\\n'
    """
    if b"\0" not in script and _is_utf8(script):
        return script
    found = _OF_NO_TEXT.search(script)
    return script if found is None else script[: script.rfind(b"\n", 0, found.start()) + 1]


def _is_utf8(script: bytes) -> bool:
    try:
        script.decode()
    except UnicodeDecodeError:
        return False
    return True


def _after(script: bytes, at: int, word: bytes, *, tabs: bool) -> int:
    """Where a here-document ends that begins at `at`: after the line of its word, or with the script."""
    indent = rb"\t*" if tabs else b""
    found = re.compile(rb"^" + indent + re.escape(word) + rb"\r?(?:\n|\Z)", re.MULTILINE).search(script, at)
    return found.end() if found else len(script)


def flaw(script: bytes) -> str | None:
    """Why no shell can read a script, as the end of a sentence about it; None if one can.

    >>> flaw(b"#!/bin/sh\\necho 1\\recho 2\\r")
    'ends its lines in CR alone: save it with the line ends of Unix (LF)'
    """
    begin, _, rest = script.partition(b"\n")
    second = rest.partition(b"\n")[0] if begin.startswith(_FIRST) else b""
    if b"\0" in begin + second:
        return "has a NUL byte in its first lines, so that shells take it for a program: save it as text"
    body = rest if begin.startswith(_FIRST) and b"\r" not in begin.removesuffix(b"\r") else script
    if b"\r" in body and b"\n" not in body:
        return "ends its lines in CR alone: save it with the line ends of Unix (LF)"
    return None
