r"""Cells of CSV that a spreadsheet does not run.

A spreadsheet takes a cell that begins with = + - @, a tab or a line end for a formula, quoted or not: text of a policy or a task could read and send
what else the sheet holds. `guarded` puts an apostrophe before such text, which a spreadsheet takes for "this is text".

>>> guarded("=HYPERLINK(1)"), guarded("-1.5e-3"), guarded("-1+cmd"), guarded("a=b"), guarded("'=x"), guarded(" =x")
("'=HYPERLINK(1)", '-1.5e-3', "'-1+cmd", 'a=b', "''=x", "' =x")
"""

import re

# Spaces, and marks that are not shown, before the character do not stop every spreadsheet. The forms of @ and = for East Asian text are taken, too.
_RUNS = re.compile(r"'*[\s\ufeff\u200b]*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.I)


def guarded(cell: str) -> str:
    """The cell with an apostrophe before it if a spreadsheet could run it. Numbers stay as they are. Text that would read as guarded gets one, too:
    `bare` gives every cell back."""
    return f"'{cell}" if _RUNS.match(cell) and not _NUMBER.fullmatch(cell) else cell


def bare(cell: str) -> str:
    """The inverse of `guarded`.

    >>> bare(guarded("=1")), bare("'tis")
    ('=1', "'tis")
    """
    return cell[1:] if cell.startswith("'") and guarded(cell[1:]) == cell else cell
