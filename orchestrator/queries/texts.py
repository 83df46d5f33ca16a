"""Texts as pages show them. Long texts are cut, with their full length, and fetched whole on demand; bodies that are not text are
marked."""

import codecs
import re
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.quote import quoted
from orchestrator.queries.instructions import instruction_of

SHOWN = 6_000
"""Characters of one text in a page of steps: 20 steps of a few texts each stay below a megabyte."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The first characters of a text. `length`: characters of the whole text; nothing is cut if both are equal."""

    text: str
    length: int

    @property
    def whole(self) -> bool:
        return len(self.text) == self.length


def cut(given: str, limit: int = SHOWN) -> Cut:
    """The first `limit` characters of `given`."""
    return Cut(given[:limit], len(given))


def cut_or_none(given: str | None, limit: int = SHOWN) -> Cut | None:
    """`cut`, or None if `given` is empty or missing."""
    return cut(given, limit) if given else None


def readable(body: bytes, *, more: bool = False) -> str | None:
    """`body` as text; None if it is not text: it holds a NUL, or is not UTF-8. With `more` after it, it may end inside a character."""
    if b"\0" in body:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body, final=not more)
    except UnicodeDecodeError:
        return None


# C0 but tab and line feed, DEL, C1, and characters that reverse the writing direction or hide text, tags and fillers included. The
# dashboard's format.js has the same list.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u2069\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible(given: str) -> str:
    """Text from a model, task or tool, with every character that could colour, move, reorder or hide spelled out: ESC as ␛, U+202E as
    ⟨U+202E⟩.

    >>> visible("a\x1b[31m\u202eb")
    'a␛[31m⟨U+202E⟩b'
    """
    return _INVISIBLE.sub(_spelled, given.replace("\r\n", "\n"))


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


_WHOLE_TEXTS = {
    "instruction": f"""SELECT {instruction_of("t")} FROM rollouts r JOIN groups g ON g.group_id = r.group_id
                        JOIN tasks t ON t.task_id = g.task_id WHERE r.run_id = :run AND r.rollout_id = :rollout""",
    "answer": "SELECT answer FROM attempts WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt",
    "log": "SELECT log FROM attempts WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt",
    "verdict.log": "SELECT log FROM verdicts WHERE run_id = :run AND rollout_id = :rollout AND revision = :number",
    "verdict.check": """SELECT tests -> CAST(:check AS int) ->> 'message' FROM verdicts
                         WHERE run_id = :run AND rollout_id = :rollout AND revision = :number""",
}


async def whole_rollout_text(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, part: str
) -> str | None:
    """The whole of a text of a rollout that its page cut. `part`: instruction, answer or log (of that attempt), verdict.R.log or
    verdict.R.check.N of revision R; None if `part` names no such text. Raises NotFoundError."""
    keys = part.split(".")
    numbers = keys[1::2]
    name = ".".join(keys[::2])
    if (
        name not in _WHOLE_TEXTS
        or len(numbers) != name.count(".") + ("check" in name)
        or not all(number.isascii() and number.isdigit() and len(number) < 5 for number in numbers)
    ):
        return None
    values = {"run": run_id, "rollout": rollout_id, "attempt": attempt}
    values |= dict(zip(("number", "check"), map(int, numbers), strict=False))
    found = await connection.scalar(text(_WHOLE_TEXTS[name]), values)
    if found is None:
        raise NotFoundError(f"rollout {rollout_id}, attempt {attempt} has no text {quoted(part)} in this run")
    return str(found)
