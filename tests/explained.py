"""How many rows the queries of a piece of work read, by PostgreSQL's own count."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


async def most_rows_read(
    engine: AsyncEngine, table: str, work: Callable[[AsyncConnection], Awaitable[object]]
) -> int:
    """The most rows of `table` that one scan reads, over the queries of `work`, each explained after it in the same transaction."""
    seen: list[tuple[str, Any]] = []

    def note(*call: Any) -> None:
        if table in call[2] and not call[2].startswith(("EXPLAIN", "UPDATE")):
            seen.append((call[2], call[3]))

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        async with engine.begin() as connection:
            await work(connection)
            plans = [
                (
                    await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", given)
                ).scalar_one()
                for query, given in list(seen)
            ]
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)
    assert plans, "the work has no query of the table"
    return int(max(rows for [plan] in plans for rows in _scans(plan["Plan"], table)))


def _scans(plan: dict[str, Any], table: str) -> Iterator[int]:
    if plan.get("Relation Name", "").startswith(table):
        yield (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    for part in plan.get("Plans", ()):
        yield from _scans(part, table)
