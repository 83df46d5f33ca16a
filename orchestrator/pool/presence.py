"""Presence: each process of a run says in the data pool that it lives and what its loops are doing, for whoever asks what holds a run up.

| produces | waits for | unblocked by |
|---|---|---|
| the process's row, on the database's clock | time | time |
| nothing while Postgres is away: the watchdog names it in the log and in the metrics | Postgres | its return |
"""

import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from sqlalchemy import case, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.pool.clean import clean
from orchestrator.pool.tables import processes
from orchestrator.pool.transact import transact
from orchestrator.progress import looping, pause
from orchestrator.watchdog import Watchdog, on_watch

BEATS = 12  # per no_progress_s
LEAVE_S = 1.0
FORGOTTEN_S = 24 * 3600.0  # nobody misses a process that has been silent for so long


class LoopReport(msgspec.Struct, frozen=True):
    """A loop as its process saw it when it was last heard of. `stuck_s` is 0 where all is well; `age_s` since its last progress."""

    name: str
    item: str
    waits_for: str
    resting: bool
    age_s: float
    stuck_s: float
    ended: str
    restarts: int


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process. `silent_s`: since it was last heard of, on the database's clock; `stopped`: it said that it ends."""

    host: str
    process: str
    pid: int
    silent_s: float
    stopped: bool
    loops: Sequence[LoopReport]

    @property
    def kind(self) -> str:
        """What it is: a second runner is called runner-2."""
        return self.process.partition("-")[0]


@asynccontextmanager
async def announced(engine: AsyncEngine, run_id: int) -> AsyncIterator[None]:
    """While the context is open this process tells the data pool about its board; at the end, that it ends. Without a watchdog there is
    nothing to tell."""
    if (dog := on_watch()) is None:
        yield
        return
    failed: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_beat, engine, run_id, dog)
            try:
                yield
            except Exception as error:  # noqa: BLE001  # raised again below, unwrapped
                failed = error
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(LEAVE_S, shield=True):  # best effort
            await transact(engine, lambda connection: leave(connection, run_id, dog), at="presence.commit")
    if failed is not None:
        raise failed


async def _beat(engine: AsyncEngine, run_id: int, dog: Watchdog) -> None:
    with looping("presence") as loop:
        while True:
            loop.works("a heartbeat")
            await transact(engine, lambda connection: tell(connection, run_id, dog), at="presence.commit")
            await pause(dog.settings.no_progress_s / BEATS)


async def tell(connection: AsyncConnection, run_id: int, dog: Watchdog) -> None:
    """Write the row of this process."""
    row = {
        "pid": os.getpid(),
        "heard": func.clock_timestamp(),
        "stopped": False,
        "loops": reported(dog, time.monotonic()),
    }
    new = insert(processes).values(run_id=run_id, host=socket.gethostname(), process=dog.board.process, **row)
    same = (processes.c.pid == os.getpid()) & ~processes.c.stopped
    started = case((same, processes.c.started), else_=func.clock_timestamp())
    await connection.execute(
        new.on_conflict_do_update(
            index_elements=["run_id", "host", "process"], set_={**row, "started": started}
        )
    )


async def leave(connection: AsyncConnection, run_id: int, dog: Watchdog) -> None:
    """This process says that it ends."""
    await connection.execute(
        update(processes)
        .where(
            processes.c.run_id == run_id,
            processes.c.host == socket.gethostname(),
            processes.c.process == dog.board.process,
            processes.c.pid == os.getpid(),
        )
        .values(stopped=True, heard=func.clock_timestamp(), loops=[])
    )


def reported(dog: Watchdog, now: float) -> Any:
    """The board as rows keep it."""
    return msgspec.to_builtins(
        [
            LoopReport(
                name=loop.name,
                item=clean(loop.item),
                waits_for=loop.waits_for,
                resting=loop.resting,
                age_s=round(max(0.0, now - loop.since), 3),
                stuck_s=round(loop.stuck_for(now, dog.settings.no_progress_s), 3),
                ended=clean(loop.ended),
                restarts=loop.restarts,
            )
            for loop in dog.board.loops().values()
        ]
    )


async def present(connection: AsyncConnection, run_id: int) -> list[ProcessReport]:
    """Every process of the run that was heard of within a day, by name."""
    silent = func.extract("epoch", func.clock_timestamp() - processes.c.heard)
    rows = await connection.execute(
        select(processes, silent.label("silent"))
        .where(processes.c.run_id == run_id, silent < FORGOTTEN_S)
        .order_by(processes.c.host, processes.c.process)
    )
    return [
        ProcessReport(
            row.host,
            row.process,
            row.pid,
            float(row.silent),
            row.stopped,
            msgspec.convert(row.loops, list[LoopReport]),
        )
        for row in rows
    ]
