"""The one loop of every export of attempts: pages from the data pool into parts of a format, each part whole before the next begins.

| produces | waits for | goes on after a death |
|---|---|---|
| finished parts, then the manifest with their last key | one page of attempts | behind that key (records.py: what is live) |
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread
from sqlalchemy import exists, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.export.filters import Bound, Filters, read_since
from orchestrator.export.manifest import WRITING, Manifest, claimed, publish, write_manifest
from orchestrator.export.records import PAGE, Attempt, count, page
from orchestrator.pool.engine import check_revision
from orchestrator.pool.runs import Run, get_run
from orchestrator.pool.tables import groups, runs

STATEMENT = "10min"  # at most; one page takes milliseconds, the count one pass
Tick = Callable[[int, int], None]
"""(attempts so far, attempts in all)."""


class Format(Protocol):
    """How attempts become files. Each call of `begin` starts a part; `end` finishes its files in `directory`, where they are named as they
    shall be below the export's own directory, and returns their names."""

    name: str
    part: int  # attempts in one

    def options(self) -> Mapping[str, Any]:
        """What changes the bytes, apart from the filters."""
        ...

    def split(self) -> Sequence[str]:
        """Columns of groups whose values are never mixed in one part."""
        ...

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: Run) -> None: ...

    def add(self, attempt: Attempt) -> bool:
        """True: no more should come into this part, which `part` alone does not tell. It must follow from the attempts alone."""
        ...

    def end(self) -> Sequence[str]: ...

    def close(self, directory: Path, done: "Done") -> Sequence[str]:
        """What belongs to all parts, once there are all."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """What an export holds in all, with what came before an interruption. `already`: it was complete before."""

    export: str
    run: str
    out: str
    attempts: int
    steps: int
    parts: int
    asked: Mapping[str, Any]
    already: bool = False


async def export(
    engine: AsyncEngine, run_name: str, form: Format, wanted: Filters, out: Path, tick: Tick = lambda *_: None
) -> Done:
    """Write `out`, or go on with it. ConfigurationError for an unknown run, a directory that is not ours, or one that holds another export."""
    async with engine.connect() as connection:
        await check_revision(connection)
        run = await get_run(connection, run_name)
        new = await _new(connection, run, form, wanted)
    with claimed(out, new) as manifest:
        if manifest.done:
            return _done(manifest, out, already=True)
        bound = Bound(manifest.as_of, manifest.since)
        async with _reading(engine) as connection:
            total = await count(connection, run, wanted, bound)
        writer = _Writer(form, out, manifest, run, total, tick)
        while manifest.section < len(manifest.sections):
            section = manifest.sections[manifest.section]
            await _section(engine, writer, run, replace(wanted, **section), bound)
            manifest.section, manifest.after = manifest.section + 1, None
        await writer.finish()
        return _done(manifest, out)


async def _section(engine: AsyncEngine, writer: "_Writer", run: Run, wanted: Filters, bound: Bound) -> None:
    after = writer.manifest.after
    while True:
        async with _reading(engine) as connection:
            found = await page(connection, run, wanted, bound, after)
        for attempt in found:
            await writer.add(attempt)
            after = attempt.key
        if len(found) < PAGE:
            await writer.end_part()
            return


@asynccontextmanager
async def _reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A short transaction in which a page's statements see the same."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        await connection.execute(
            text("select set_config('statement_timeout', :limit, true)"), {"limit": STATEMENT}
        )
        yield connection


async def _new(connection: AsyncConnection, run: Run, form: Format, wanted: Filters) -> Manifest:
    now, created = (
        await connection.execute(
            select(text("clock_timestamp()"), runs.c.created).where(runs.c.run_id == run.run_id)
        )
    ).one()
    if run.pruned is not None:
        raise ConfigurationError(
            f"run {run.name!r} was pruned at {run.pruned:%Y-%m-%d %H:%M}: its steps are gone, so there is nothing to export"
        )
    of = groups.c.run_id == run.run_id
    if wanted.domain is not None and not await connection.scalar(
        select(exists().where(of, groups.c.domain == wanted.domain))
    ):
        there = sorted((await connection.scalars(select(groups.c.domain).where(of).distinct())).all())
        raise ConfigurationError(
            f"--domain {wanted.domain!r}: run {run.name!r} has none of that name; known: {', '.join(there) or 'none'}"
        )
    sections: list[dict[str, Any]] = [{}]
    if columns := form.split():
        distinct = (
            select(*(groups.c[name] for name in columns)).where(groups.c.run_id == run.run_id).distinct()
        )
        for name in columns:
            if value := getattr(wanted, name):
                distinct = distinct.where(groups.c[name] == value)
        rows = (await connection.execute(distinct)).all()
        told = sorted([value or "" for value in row] for row in rows)
        sections = [dict(zip(columns, row, strict=True)) for row in told]
    return Manifest(
        export=form.name,
        run=run.name,
        created=created,
        asked={**wanted.plain(), **form.options()},
        as_of=now,
        since=read_since(wanted.since, now),
        sections=sections,
    )


class _Writer:
    """Attempts into parts, and the manifest behind each."""

    def __init__(self, form: Format, out: Path, manifest: Manifest, run: Run, total: int, tick: Tick) -> None:
        self.manifest = manifest
        self._form, self._out, self._run, self._total, self._tick = form, out, run, total, tick
        self._in_part = self._steps = 0
        self._last: tuple[int, int] | None = None
        self._tick(manifest.attempts, total)

    async def add(self, attempt: Attempt) -> None:
        if self._in_part == 0:
            directory = self._out / WRITING
            directory.mkdir(exist_ok=True)
            section = self.manifest.sections[self.manifest.section]
            self._form.begin(directory, self.manifest.part, section, self._run)
        full = self._form.add(attempt)
        self._in_part += 1
        self._steps += len(attempt.steps)
        self._last = attempt.key
        self._tick(self.manifest.attempts + self._in_part, self._total)
        if full or self._in_part == self._form.part:
            await self.end_part()

    async def end_part(self) -> None:
        """Files first, then the manifest: a death between both writes the same part again."""
        if self._in_part == 0:
            return
        await self._publish(self._form.end)
        manifest = self.manifest
        manifest.part += 1
        manifest.after = self._last
        manifest.attempts += self._in_part
        manifest.steps += self._steps
        self._in_part = self._steps = 0
        write_manifest(self._out, manifest)

    async def finish(self) -> None:
        (self._out / WRITING).mkdir(exist_ok=True)
        done = _done(self.manifest, self._out)
        await self._publish(lambda: self._form.close(self._out / WRITING, done))
        self.manifest.done = True
        write_manifest(self._out, self.manifest)

    async def _publish(self, finish: Callable[[], Sequence[str]]) -> None:
        for name in await anyio.to_thread.run_sync(finish):
            publish(self._out, name)


def _done(manifest: Manifest, out: Path, *, already: bool = False) -> Done:
    return Done(
        manifest.export, manifest.run, str(out), manifest.attempts, manifest.steps, manifest.part, manifest.asked, already
    )  # fmt: skip
