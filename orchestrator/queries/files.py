"""Files that an attempt left for its verifier: text as text, anything else marked as binary."""

import stat
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Left
from orchestrator.queries.texts import Cut, readable
from orchestrator.tasks.artifact_modes import GONE

SHOWN = 20_000  # characters of a file in a page
READ = 128 * 1024  # bytes of a file that are read for a page


class FileKind(StrEnum):
    """A path that an attempt left, as a page shows it."""

    TEXT = "text"
    BINARY = "binary"
    LINK = "link"
    DIRECTORY = "directory"
    BEHIND = "behind"  # it was not copied
    DELETED = "deleted"  # by the agent


_GONE = "gone"
_BY_TYPE = {stat.S_IFLNK: Left.LINK, stat.S_IFDIR: Left.DIRECTORY, GONE: _GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """`bytes`: its size. `text`: of a link its target, of a path that was not copied the reason; None if it is not text."""

    path: str
    mode: int
    kind: FileKind
    bytes: int
    text: Cut | None


def size_of(row: str) -> str:
    """SQL: the bytes of an artifact; null: deleted."""
    return f"CASE WHEN {row}.mode <> {GONE} THEN coalesce(length({row}.body), {row}.size) END"


def beginning_of(row: str) -> str:
    """SQL: up to :read first bytes of an artifact; null: deleted. Of a file in blobs, from its first one."""
    return f"coalesce(substr({row}.body, 1, :read), (SELECT substr(p.body, 1, :read) FROM blobs p WHERE p.sha = {row}.parts[1]))"


def sha_of(row: str) -> str:
    """SQL: a digest of an artifact's content, equal for equal files; of one in several blobs, of their names."""
    names = f"(SELECT string_agg(p.sha, ''::bytea ORDER BY p.n) FROM unnest({row}.parts) WITH ORDINALITY AS p(sha, n))"
    return f"CASE cardinality({row}.parts) WHEN 1 THEN {row}.parts[1] ELSE sha256(coalesce({row}.body, {names})) END"


_FILES = text(
    f"""SELECT path, mode, {beginning_of("f")} AS body, {size_of("f")} AS size, kind, why FROM artifacts f
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt
          AND step = (SELECT max(step) FROM artifacts WHERE rollout_id = :rollout AND attempt = :attempt) ORDER BY path LIMIT 500"""
)
_BODY = text(
    """SELECT coalesce(body, (SELECT string_agg(b.body, ''::bytea ORDER BY p.n)
                                FROM unnest(parts) WITH ORDINALITY AS p(sha, n) JOIN blobs b USING (sha))) AS body
         FROM artifacts
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND path = :path ORDER BY step DESC LIMIT 1"""
)


async def files(connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int) -> list[File]:
    """The files of one attempt by path, up to 500; of a task with several steps, those after the last one."""
    rows = await connection.execute(
        _FILES, {"run": run_id, "rollout": rollout_id, "attempt": attempt, "read": READ}
    )
    return [_file(row.path, row.mode, row.body, row.size, row.kind, row.why) for row in rows]


def _file(path: str, mode: int, body: bytes | None, size: int | None, left: str, why: str | None) -> File:
    if (found := _BY_TYPE.get(stat.S_IFMT(mode))) is not None:  # outside of the work directory of an image
        left, mode = found, stat.S_IMODE(mode)
        body, size = (None, None) if left == _GONE else (body, size)
    if left == Left.BEHIND:
        return File(path=path, mode=mode, kind=FileKind.BEHIND, bytes=0, text=Cut(why or "", len(why or "")))
    if left == Left.DIRECTORY:
        return File(path=path, mode=mode, kind=FileKind.DIRECTORY, bytes=0, text=None)
    if left == Left.LINK and body is not None:
        target = bytes(body).decode(errors="replace")
        return File(path=path, mode=mode, kind=FileKind.LINK, bytes=len(body), text=Cut(target, len(target)))
    if body is None or size is None:
        return File(path=path, mode=mode, kind=FileKind.DELETED, bytes=0, text=None)
    more = len(body) < size
    readable_text = readable(bytes(body), more=more)
    if readable_text is None:
        return File(path=path, mode=mode, kind=FileKind.BINARY, bytes=size, text=None)
    return File(
        path=path,
        mode=mode,
        kind=FileKind.TEXT,
        bytes=size,
        text=Cut(readable_text[:SHOWN], size if more else len(readable_text)),
    )


async def file_body(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, path: str
) -> bytes:
    """A whole file. Raises NotFoundError."""
    body = await connection.scalar(
        _BODY, {"run": run_id, "rollout": rollout_id, "attempt": attempt, "path": path}
    )
    if body is None:
        raise NotFoundError(f"rollout {rollout_id}, attempt {attempt} left no file {quoted(path)}")
    return bytes(body)
