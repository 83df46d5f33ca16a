"""Presence: each process of a run says in the data pool that it lives and what its loops are doing, for whoever asks what holds a run up; and
hears what it is ordered (pool.orders).

| produces | waits for | unblocked by |
|---|---|---|
| the process's row, on the database's clock | time | time |
| nothing while Postgres is away: the watchdog names it in the log and in the metrics | Postgres | its return |
"""

import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import msgspec
from sqlalchemy import case, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.metrics import ready
from orchestrator.pool.clean import clean
from orchestrator.pool.orders import Orders
from orchestrator.pool.tables import processes, rollout_servers
from orchestrator.pool.transact import transact
from orchestrator.progress import looping, pause
from orchestrator.watchdog import Watchdog, on_watch

BEATS = 12  # per no_progress_s
QUICKER = 5  # times as often while something drains, and somebody waits for that
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
    """One process. `silent_s`: since it was last heard of, on the database's clock; `stopped`: it said that it ends. `draining`: it is asked
    to take no new work; `holds`: how much it still has of what drains (pool.draining); `code`: what it runs, None: it does not say."""

    host: str
    process: str
    pid: int
    silent_s: float
    stopped: bool
    loops: Sequence[LoopReport]
    draining: bool = False
    holds: Mapping[str, int] = field(default_factory=dict)
    code: str | None = None

    @property
    def kind(self) -> str:
        """What it is: a second runner is called runner-2."""
        return self.process.partition("-")[0]


@cache
def own_code() -> str:
    """12 hex digits of a sha256 over the orchestrator's Python files, as they lie there when they are first asked for."""
    package, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


@asynccontextmanager
async def announced(engine: AsyncEngine, run_id: int, orders: Orders | None = None) -> AsyncIterator[None]:
    """While the context is open this process tells the data pool about its board; at the end, that it ends. What it is ordered it has heard
    when the context is entered, and hears again with every heartbeat. Without a watchdog there is nothing to tell."""
    if (dog := on_watch()) is None:
        yield
        return
    failed: Exception | None = None
    if orders is not None:  # one that died while it drained takes nothing when it comes back
        await transact(engine, lambda connection: tell(connection, run_id, dog, orders), at="presence.commit")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_beat, engine, run_id, dog, orders)
            try:
                with ready():
                    yield
            except Exception as error:  # noqa: BLE001  # raised again below, unwrapped
                failed = error
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(LEAVE_S, shield=True):  # best effort
            await transact(engine, lambda connection: leave(connection, run_id, dog), at="presence.commit")
    if failed is not None:
        raise failed


async def _beat(engine: AsyncEngine, run_id: int, dog: Watchdog, orders: Orders | None) -> None:
    period_s = dog.settings.no_progress_s / BEATS
    with looping("presence") as loop:
        while True:
            loop.works("a heartbeat")
            await transact(
                engine, lambda connection: tell(connection, run_id, dog, orders), at="presence.commit"
            )
            await pause(period_s / QUICKER if orders is not None and orders.any else period_s)


async def tell(connection: AsyncConnection, run_id: int, dog: Watchdog, orders: Orders | None = None) -> None:
    """Write the row of this process, and hear its orders."""
    holds = await orders.holds(connection) if orders is not None else {}
    row = {
        "holds": holds or None,
        "pid": os.getpid(),
        "heard": func.clock_timestamp(),
        "stopped": False,
        "loops": reported(dog, time.monotonic()),
        "code": own_code(),
    }
    new = insert(processes).values(run_id=run_id, host=socket.gethostname(), process=dog.board.process, **row)
    same = (processes.c.pid == os.getpid()) & ~processes.c.stopped
    started = case((same, processes.c.started), else_=func.clock_timestamp())
    told = new.on_conflict_do_update(
        index_elements=["run_id", "host", "process"], set_={**row, "started": started}
    ).returning(processes.c.draining)
    drains = (await connection.scalar(told)) is not None
    if orders is not None:
        drained = select(rollout_servers.c.url).where(
            rollout_servers.c.run_id == run_id, rollout_servers.c.draining.is_not(None)
        )
        orders.hear(drains, (await connection.scalars(drained)).all() if orders.of_servers else ())


async def leave(connection: AsyncConnection, run_id: int, dog: Watchdog) -> None:
    """This process says that it ends, and its orders with it."""
    await connection.execute(
        update(processes)
        .where(
            processes.c.run_id == run_id,
            processes.c.host == socket.gethostname(),
            processes.c.process == dog.board.process,
            processes.c.pid == os.getpid(),
        )
        .values(stopped=True, heard=func.clock_timestamp(), loops=[], draining=None, holds=None)
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
            row.draining is not None,
            row.holds or {},
            row.code,
        )
        for row in rows
    ]
