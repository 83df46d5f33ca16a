"""Messages that may end the process that handles them, without an error that it could catch: a crash of native code, or a lack of memory.

Such a message is handled alone, and its row says so. Its handling deletes the row as its first statement, in the transaction that commits it: until
then another process that wants to handle the message waits for that transaction's end.
"""

import secrets
from typing import Final

from sqlalchemy import Integer, cast, delete, func, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.pool.tables import suspect_messages
from orchestrator.pool.transact import transact

KEPT = text("interval '7 days'")
"""A row that is older belongs to a message that never came again."""
THIS_PROCESS: Final = secrets.token_hex(8)


async def begin_alone(engine: AsyncEngine, digest: bytes, stream: str, process: str = THIS_PROCESS) -> int:
    """Record that a message is handled alone from now on. Returns how many processes began that and did not end it, this one included. A process that
    begins twice is alive, and counts once. `digest`: 32 bytes."""
    table = suspect_messages.c

    async def work(connection: AsyncConnection) -> int:
        await connection.execute(delete(suspect_messages).where(table.at < func.clock_timestamp() - KEPT))
        row = insert(suspect_messages).values(digest=digest, stream=stream, tries=1, process=process)
        another = cast(table.process != row.excluded.process, Integer)
        counted = row.on_conflict_do_update(
            index_elements=[table.digest],
            set_={"tries": table.tries + another, "process": process, "at": func.clock_timestamp()},
        ).returning(table.tries)
        return int(await connection.scalar(counted) or 0)

    return await transact(engine, work, at="refused.commit")


async def end_alone(connection: AsyncConnection, digest: bytes) -> None:
    """Record that the handling of a message has ended, whatever its end."""
    await connection.execute(delete(suspect_messages).where(suspect_messages.c.digest == digest))
