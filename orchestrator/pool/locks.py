"""The one lock of the product that is not a row's: on a table, against others that take it.

Not an advisory lock, which every login may take, also one that only reads: the product would wait for it. A lock on a table other than ACCESS SHARE
takes the right to change that table. This mode excludes itself, and neither reads nor writes.
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

MODE = "SHARE UPDATE EXCLUSIVE"


async def lock_table(connection: AsyncConnection, table: str) -> None:
    """Wait until no other transaction holds the lock of `table`, and hold it until the end of this one."""
    await connection.execute(text(f"LOCK TABLE {table} IN {MODE} MODE"))
