"""Heartbeats: each process of a run reports to the data pool that it is alive and the state of its loops, to explain stalls. In return it
reads its drain orders (pool.drain_requests).

| produces | waits for | unblocked by |
|---|---|---|
| the process's row, on the database's clock | time | time |
| nothing while Postgres is unreachable: the watchdog names it in the log and in the metrics | Postgres | its return |
"""

import math
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from sqlalchemy import case, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.http_urls import one_spelling
from orchestrator.pool.code_digest import digest_of
from orchestrator.pool.drain_requests import DrainRequests
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import processes, rollout_servers
from orchestrator.pool.transact import transact
from orchestrator.runtime.liveness import pause, track_loop
from orchestrator.runtime.metrics import ready
from orchestrator.runtime.watchdog import Watchdog, on_watch

BEATS = 12  # per no_progress_s
QUICKER = 5  # times as often while something drains, because a person waits for the result
LEAVE_S = 1.0
FORGOTTEN_S = 24 * 3600.0  # a process that has been silent for so long is not missed


class LoopReport(msgspec.Struct, frozen=True, kw_only=True):
    """A loop in the latest report of its process. `stuck_s` is 0 for a healthy loop; `age_s` is the time since its last progress."""

    name: str
    item: str
    waits_for: str
    resting: bool
    age_s: float
    stuck_s: float
    ended: str
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """One process. `silent_s`: time since its last report, on the database's clock; `stopped`: it reported its end. `draining`: it is ordered
    to take no new work; `holds`: its remaining work per draining item (pool.draining); `code`: its code version, None: not reported; `up_s`: time
    since its first report."""

    host: str
    process: str
    pid: int
    silent_s: float
    stopped: bool
    loops: Sequence[LoopReport]
    draining: bool = False
    holds: Mapping[str, int] = field(default_factory=dict)
    code: str | None = None
    up_s: float = math.inf

    @property
    def kind(self) -> str:
        """Its kind. A second runner is called runner-2."""
        return self.process.partition("-")[0]


def own_code() -> str:
    """12 hex digits of the digest of the orchestrator's code."""
    return digest_of("orchestrator")[:12]


@asynccontextmanager
async def send_heartbeats(
    engine: AsyncEngine, run_id: int, orders: DrainRequests | None = None
) -> AsyncIterator[None]:
    """While the context is open, this process reports its loops to the data pool; at the end, it reports its end. It reads its orders
    on entry and with every heartbeat. Without a watchdog it reports nothing."""
    if (watchdog := on_watch()) is None:
        yield
        return
    failed: Exception | None = None
    if orders is not None:  # a process that died while it drained takes no work when it comes back
        await transact(
            engine,
            lambda connection: write_heartbeat(connection, run_id, watchdog, orders),
            at="heartbeat.commit",
        )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_beat, engine, run_id, watchdog, orders)
            try:
                with ready():
                    yield
            except Exception as error:  # noqa: BLE001  # raised again below, unwrapped
                failed = error
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(LEAVE_S, shield=True):  # best effort
            await transact(
                engine, lambda connection: write_end(connection, run_id, watchdog), at="heartbeat.commit"
            )
    if failed is not None:
        raise failed


async def _beat(engine: AsyncEngine, run_id: int, dog: Watchdog, orders: DrainRequests | None) -> None:
    period_s = dog.settings.no_progress_s / BEATS
    with track_loop("heartbeat") as loop:
        while True:
            loop.busy("a heartbeat")
            await transact(
                engine,
                lambda connection: write_heartbeat(connection, run_id, dog, orders),
                at="heartbeat.commit",
            )
            await pause(period_s / QUICKER if orders is not None and orders.any else period_s)


async def write_heartbeat(
    connection: AsyncConnection, run_id: int, dog: Watchdog, orders: DrainRequests | None = None
) -> None:
    """Write the row of this process and read its orders."""
    holds = await orders.remaining_work(connection) if orders is not None else {}
    row = {
        "holds": holds or None,
        "pid": os.getpid(),
        "last_seen": func.clock_timestamp(),
        "stopped": False,
        "loops": loop_reports(dog, time.monotonic()),
        "code": own_code(),
    }
    new = insert(processes).values(run_id=run_id, host=socket.gethostname(), process=dog.loops.process, **row)
    same = (processes.c.pid == os.getpid()) & ~processes.c.stopped
    started = case((same, processes.c.started), else_=func.clock_timestamp())
    upsert = new.on_conflict_do_update(
        index_elements=["run_id", "host", "process"], set_={**row, "started": started}
    ).returning(processes.c.draining)
    drains = (await connection.scalar(upsert)) is not None
    if orders is not None:
        drained = select(rollout_servers.c.url).where(
            rollout_servers.c.run_id == run_id, rollout_servers.c.draining.is_not(None)
        )
        urls = (await connection.scalars(drained)).all() if orders.of_servers else ()
        orders.update(drains, {one_spelling(url) for url in urls})


async def write_end(connection: AsyncConnection, run_id: int, dog: Watchdog) -> None:
    """Report that this process ends. Its orders end with it."""
    await connection.execute(
        update(processes)
        .where(
            processes.c.run_id == run_id,
            processes.c.host == socket.gethostname(),
            processes.c.process == dog.loops.process,
            processes.c.pid == os.getpid(),
        )
        .values(stopped=True, last_seen=func.clock_timestamp(), loops=[], draining=None, holds=None)
    )


def loop_reports(dog: Watchdog, now: float) -> Any:
    """The state of the loops in the form of the row."""
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
            for loop in dog.loops.loops().values()
        ]
    )


async def present(connection: AsyncConnection, run_id: int) -> list[ProcessReport]:
    """Every process of the run that reported within the last day, by name."""
    silent = func.extract("epoch", func.clock_timestamp() - processes.c.last_seen)
    up = func.extract("epoch", func.clock_timestamp() - processes.c.started)
    rows = await connection.execute(
        select(processes, silent.label("silent"), up.label("up"))
        .where(processes.c.run_id == run_id, silent < FORGOTTEN_S)
        .order_by(processes.c.host, processes.c.process)
    )
    return [
        from_wide_row(
            ProcessReport,
            row,
            silent_s=float(row.silent),
            up_s=float(row.up),
            loops=msgspec.convert(row.loops, list[LoopReport]),
            draining=row.draining is not None,
            holds=row.holds or {},
        )
        for row in rows
    ]
