"""Reading and writing of blobs: up to `PART_BYTES` bytes, known by their sha256 and equal for all runs.

Nothing refers to a blob by a foreign key: a task's body names its blobs, directly or through trees (tasks.message), and a row of `artifacts` its
`parts`. `sweep` deletes those that no living run names. A blob that was stored or named within `GRACE` is kept, because its task or result may be on
its way.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import array, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.dml import ReturningDelete

from orchestrator.pool.columns import among
from orchestrator.pool.tables import artifacts, blobs, runs, tasks
from orchestrator.pool.transact import transact

GRACE = "1 day"
_RENEWED = "1 hour"  # how old the time of a named blob may be
PAGE = 16
"""Blobs that are read at a time: about 14 MB."""
_NAMES = 10_000
_SWEPT = 500  # blobs that one transaction deletes


async def store(connection: AsyncConnection, bodies: Mapping[str, bytes]) -> None:
    """Store blobs by the hex sha256 of their bytes, which the caller has checked. Known ones only get a new time."""
    if not bodies:
        return
    statement = insert(blobs).values(
        [{"sha": bytes.fromhex(sha), "body": body} for sha, body in sorted(bodies.items())]
    )
    await connection.execute(
        statement.on_conflict_do_update(index_elements=[blobs.c.sha], set_={"at": func.clock_timestamp()})
    )


async def missing(connection: AsyncConnection, shas: Collection[str]) -> set[str]:
    """Those of the hex names that are not stored."""
    absent = set(shas)
    for page in _pages(shas, _NAMES):
        found = await connection.execute(select(blobs.c.sha).where(among(blobs.c.sha, page)))
        absent -= {sha.hex() for sha in found.scalars()}
    return absent


async def name(connection: AsyncConnection, shas: Collection[str]) -> set[str]:
    """Renew the time of blobs that a task names, so that no sweep deletes them before it is accepted. Returns the names that are not stored."""
    for page in _pages(shas, _NAMES):
        old = func.clock_timestamp() - text(f"interval '{_RENEWED}'")
        statement = update(blobs).where(among(blobs.c.sha, page), blobs.c.at < old)
        await connection.execute(statement.values({blobs.c.at: func.clock_timestamp()}))
    # After the update: it has waited for sweeps that were deleting them.
    return await missing(connection, shas)


async def read(connection: AsyncConnection, shas: Collection[str]) -> dict[str, bytes]:
    """The bytes of those of the blobs that are stored, by hex name. Ask for at most `PAGE` at a time: all of them lie in memory."""
    rows = await connection.execute(select(blobs.c.sha, blobs.c.body).where(among(blobs.c.sha, _bytes(shas))))
    return {row.sha.hex(): bytes(row.body) for row in rows}


async def named(connection: AsyncConnection, *, without: int | None = None) -> set[str]:
    """Hex names of all blobs that a run names which is not pruned, other than `without`: the trees of its tasks, their trees, the parts of files, and
    what attempts left."""
    bodies = select(tasks.c.body).join(runs, runs.c.run_id == tasks.c.run_id)
    having = tasks.c.body.has_any(array(["blobs", "trees"]))
    found: set[str] = set()
    open_trees: set[str] = set()
    living = and_(runs.c.pruned.is_(None), runs.c.run_id.is_distinct_from(without))
    async with connection.stream(bodies.where(living, having)) as rows:
        async for row in rows:
            _collect(row.body, found, open_trees)
    left = select(func.unnest(artifacts.c.parts).label("sha")).join(runs, runs.c.run_id == artifacts.c.run_id)
    async with connection.stream(left.where(living, artifacts.c.parts.is_not(None)).distinct()) as rows:
        async for row in rows:
            found.add(row.sha.hex())
    known: set[str] = set()  # not `found`: a file may have the content of a tree
    while open_trees:
        reading, open_trees = open_trees - known, set()
        known |= reading
        for page in _pages(reading, PAGE):
            trees = await connection.execute(select(blobs.c.body).where(among(blobs.c.sha, page)))
            for body in trees.scalars():
                _collect(json.loads(body), found, open_trees)
    return found | known


@dataclass(frozen=True, slots=True)
class Swept:
    """Blobs that a sweep deleted, and their bytes."""

    count: int
    size: int


async def unnamed(connection: AsyncConnection, kept: Collection[str]) -> dict[str, int]:
    """Sizes, by hex name, of the blobs that are not in `kept` and older than `GRACE`."""
    size = func.octet_length(blobs.c.body).label("size")
    rows = await connection.execute(select(blobs.c.sha, size).where(_old()))
    return {row.sha.hex(): row.size for row in rows if row.sha.hex() not in kept}


async def sweep(engine: AsyncEngine, doomed: Mapping[str, int]) -> Swept:
    """Delete those of the `unnamed` blobs that have not been named since, page by page: a submission that names one waits for one page at most."""
    count = size = 0
    for page in _pages(doomed, _SWEPT):
        statement = delete(blobs).where(among(blobs.c.sha, page), _old()).returning(blobs.c.sha)
        gone = await transact(engine, partial(_names, statement=statement), at="person.commit")
        count += len(gone)
        size += sum(doomed[sha] for sha in gone)
    return Swept(count, size)


async def _names(connection: AsyncConnection, statement: ReturningDelete[tuple[Any]]) -> list[str]:
    return [sha.hex() for sha in (await connection.execute(statement)).scalars()]


def _old() -> ColumnElement[bool]:
    return blobs.c.at < func.clock_timestamp() - text(f"interval '{GRACE}'")


def _collect(document: Mapping[str, Any], found: set[str], open_trees: set[str]) -> None:
    """Add the parts of files and the trees that a stored message or tree names directly."""
    found.update(sha for entry in document.get("blobs", {}).values() for sha in entry["parts"])
    open_trees.update(sha for shas in document.get("trees", {}).values() for sha in shas)


def _pages(shas: Collection[str], size: int) -> list[list[bytes]]:
    ordered = _bytes(shas)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


def _bytes(shas: Collection[str]) -> list[bytes]:
    return [bytes.fromhex(sha) for sha in sorted(shas)]
