"""Exports of a run's scalars (`queries.scalars`): one directory, written atomically."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.export.manifest import WRITING, Manifest, claimed, publish, write_manifest
from orchestrator.pool.runs import get_run
from orchestrator.queries.scalars import RunScalars, clock_and_created, run_scalars


class Drawer(Protocol):
    """How curves become files in a directory; returns their names there."""

    name: str

    def write(self, directory: Path, scalars: RunScalars) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The files written. `already`: the export was complete before."""

    export: str
    run: str
    out: str
    rows: int
    curves: int
    already: bool = False


async def draw(
    engine: AsyncEngine,
    run_name: str,
    drawer: Drawer,
    out: Path,
    tick: Callable[[int, int], None] = lambda *_: None,
) -> Drawn:
    """Write `out` atomically: the data is small, so an interrupted export starts again."""
    async with engine.connect() as connection:
        run = await get_run(connection, run_name)
        at, created = await clock_and_created(connection, run.run_id)
        scalars = await run_scalars(connection, run, created)
    new = Manifest(export=drawer.name, run=run.name, created=created, selection={}, as_of=at)
    names = {name for row in scalars.rows for name in row.values}
    with claimed(out, new) as manifest:
        if manifest.done:
            return Drawn(
                export=drawer.name,
                run=run.name,
                out=str(out),
                rows=manifest.attempts,
                curves=manifest.steps,
                already=True,
            )
        (out / WRITING).mkdir(exist_ok=True)
        tick(0, len(scalars.rows))
        for name in await anyio.to_thread.run_sync(drawer.write, out / WRITING, scalars):
            publish(out, name)
        tick(len(scalars.rows), len(scalars.rows))
        manifest.attempts, manifest.steps, manifest.done = len(scalars.rows), len(names), True
        write_manifest(out, manifest)
        return Drawn(
            export=drawer.name, run=run.name, out=str(out), rows=len(scalars.rows), curves=len(names)
        )
