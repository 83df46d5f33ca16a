"""Untrusted text (of a policy, a task, a message) for a terminal: characters that could move the cursor, change a colour or set a title are
escaped."""

import re

from rich.text import Text

# Except tab and line feed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 control characters, and characters that reverse the writing direction."""


def plain(text: str) -> str:
    r"""
    >>> plain("\x1b[2Jgone\x07 \u202eoops")
    '\\x1b[2Jgone\\x07 \\u202eoops'
    """
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def plain_json(text: str) -> str:
    r"""JSON with the same content and none of these characters.

    >>> plain_json('{"text": "\u202eoops\x9b"}')
    '{"text": "\\u202eoops\\u009b"}'
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell(text: str) -> Text:
    """`plain`, also without markup."""
    return Text(plain(text))
