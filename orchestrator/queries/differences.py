"""Differences between the files that two members of a group left. Agents wrote these files, so the work on them is bounded: texts that are
large, or that take long to compare, are listed with their sizes and not compared."""

import difflib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from anyio import to_thread
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.queries.files import beginning_of, sha_of, size_of
from orchestrator.queries.texts import cut, readable

COMPARED = 64 * 1024  # bytes of a text that is compared
COMPARED_LINES = 2_000
EACH_S, ALL_S = 0.3, 1.0  # seconds of one file and of a whole answer
SHOWN_LINES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDifference:
    """The difference of one path between two attempts. `change`: same | changed | only_left | only_right | binary. `left`, `right`: its
    sizes in bytes, None if missing or deleted. `lines`: a unified difference, at most SHOWN_LINES of its `length` lines; empty if it was
    not `compared`: too large, or too much work."""

    path: str
    change: str
    left: int | None
    right: int | None
    compared: bool
    lines: list[str]
    length: int


@dataclass(frozen=True, slots=True)
class Side:
    """One attempt's file. `there`: the attempt has a row for the path; `size` None: the agent deleted it; `body`: its first COMPARED
    bytes."""

    there: bool
    size: int | None = None
    body: bytes = b""


_BOTH = text(
    f"""SELECT path, a.there AS left_there, b.there AS right_there, {size_of("a")} AS left_size, {size_of("b")} AS right_size,
              CASE WHEN NOT coalesce(d.same, false) THEN {beginning_of("a")} END AS left_body,
              CASE WHEN NOT coalesce(d.same, false) THEN {beginning_of("b")} END AS right_body, d.same
         FROM (SELECT path, mode, body, parts, size, true AS there FROM artifacts
                WHERE run_id = :run AND rollout_id = :left AND (attempt, step) =
                (SELECT attempt, max(step) FROM rollouts JOIN artifacts USING (rollout_id, attempt)
                  WHERE rollout_id = :left GROUP BY attempt)) a
         FULL JOIN (SELECT path, mode, body, parts, size, true AS there FROM artifacts
                WHERE run_id = :run AND rollout_id = :right AND (attempt, step) =
                (SELECT attempt, max(step) FROM rollouts JOIN artifacts USING (rollout_id, attempt)
                  WHERE rollout_id = :right GROUP BY attempt)) b USING (path)
         CROSS JOIN LATERAL (SELECT {sha_of("a")} = {sha_of("b")} AS same) d
        ORDER BY path LIMIT 200"""
)


class _TooLong(Exception):
    """The time limit of a comparison has passed."""


class _Timed(difflib.SequenceMatcher[str]):
    """Matcher with a deadline: one step is linear in lines, but crafted texts need a great many steps."""

    def __init__(self, before: Sequence[str], after: Sequence[str], end: float) -> None:
        super().__init__(None, before, after)
        self._end = end

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        if time.monotonic() > self._end:
            raise _TooLong
        return super().find_longest_match(alo, ahi, blo, bhi)


async def differences(
    connection: AsyncConnection, run_id: int, left: int, right: int
) -> list[FileDifference]:
    """Differences between the files of rollouts `left` and `right`, each of the attempt that counts; up to 200 paths."""
    rows = (
        await connection.execute(_BOTH, {"run": run_id, "left": left, "right": right, "read": COMPARED})
    ).all()
    return await to_thread.run_sync(_compared, rows)


def _compared(rows: Sequence[Row[tuple[object, ...]]]) -> list[FileDifference]:
    end = time.monotonic() + ALL_S
    return [
        difference(
            row.path,
            Side(bool(row.left_there), row.left_size, bytes(row.left_body or b"")),
            Side(bool(row.right_there), row.right_size, bytes(row.right_body or b"")),
            same=bool(row.same),
            end=end,
        )
        for row in rows
    ]


def difference(path: str, left: Side, right: Side, *, same: bool, end: float) -> FileDifference:
    """The difference of one path, if computed before `end` (of time.monotonic). A file that the agent deleted counts as a file without
    lines."""
    found = partial(FileDifference, path=path, left=left.size, right=right.size)
    if same or (left.there and right.there and left.size is None and right.size is None):
        return found(change="same", compared=True, lines=[], length=0)
    change = "changed" if left.there and right.there else "only_left" if left.there else "only_right"
    before, after = readable(left.body, more=True), readable(right.body, more=True)
    if before is None or after is None:
        return found(change="binary", compared=True, lines=[], length=0)
    lines = _unified(path, before.splitlines(), after.splitlines(), end) if _small(left, right) else None
    if lines is None:
        return found(change=change, compared=False, lines=[], length=0)
    shown = [cut(line.rstrip("\n"), 2_000).text for line in lines[:SHOWN_LINES]]
    return found(change=change, compared=True, lines=shown, length=len(lines))


def _small(*sides: Side) -> bool:
    return all((side.size or 0) <= COMPARED for side in sides)


def _unified(path: str, before: list[str], after: list[str], end: float) -> list[str] | None:
    """A unified difference; None if there are too many lines or it takes too long."""
    if max(len(before), len(after)) > COMPARED_LINES:
        return None
    try:
        matched = _Timed(before, after, min(end, time.monotonic() + EACH_S))
        return [f"--- a/{path}", f"+++ b/{path}", *_hunks(matched, before, after)]
    except _TooLong:
        return None


def _hunks(matched: _Timed, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for group in matched.get_grouped_opcodes(3):
        (_, a_from, _, b_from, _), (_, _, a_to, _, b_to) = group[0], group[-1]
        yield f"@@ -{_place(a_from, a_to)} +{_place(b_from, b_to)} @@"
        for tag, a, a_end, b, b_end in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[a:a_end])
                continue
            yield from (f"-{line}" for line in before[a:a_end])
            yield from (f"+{line}" for line in after[b:b_end])


def _place(start: int, end: int) -> str:
    """Line range of a hunk as `diff -u` writes it: an empty range is named by the line before it."""
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"
