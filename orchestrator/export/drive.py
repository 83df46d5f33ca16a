"""The loop shared by all exports of attempts: pages from the data pool into parts of a format, each part complete before the next starts.

| produces | waits for | continues after a crash |
|---|---|---|
| finished parts, then the manifest with their last key | one page of attempts | after that key (queries/attempts.py lists the live data) |
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.export.manifest import WRITING, Manifest, claimed, publish, write_manifest
from orchestrator.pool.runs import StoredRun, get_run
from orchestrator.queries.attempt_filters import AttemptFilters, Bound, read_since
from orchestrator.queries.attempt_pages import check_wanted, each_attempt, snapshot
from orchestrator.queries.attempts import RecordedAttempt, count, group_sections
from orchestrator.queries.scalars import clock_and_created

Tick = Callable[[int, int], None]
"""(attempts so far, attempts in all)."""


class Format(Protocol):
    """How attempts become files. Each call of `begin` starts a part; `end` finishes its files in `directory`, under their final names
    relative to the export's own directory, and returns these names."""

    name: str
    part: int  # attempts per part

    def options(self) -> Mapping[str, Any]:
        """Options that change the output bytes, apart from the filters."""
        ...

    def split(self) -> Sequence[str]:
        """Columns of groups whose values are never mixed in one part."""
        ...

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: StoredRun) -> None: ...

    def add(self, attempt: RecordedAttempt) -> bool:
        """True if the part is full, in addition to the limit `part`. The result must depend on the attempts alone."""
        ...

    def end(self) -> Sequence[str]: ...

    def close(self, directory: Path, done: "ExportSummary") -> Sequence[str]:
        """Write the files that cover all parts, after the last part."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """Totals of an export, including parts from before an interruption. `already`: it was complete before."""

    export: str
    run: str
    out: str
    attempts: int
    steps: int
    parts: int
    selection: Mapping[str, Any]
    already: bool = False


async def export(
    engine: AsyncEngine,
    run_name: str,
    form: Format,
    wanted: AttemptFilters,
    out: Path,
    tick: Tick = lambda *_: None,
) -> ExportSummary:
    """Write `out`, or continue it. Raises ConfigurationError for an unknown run, a foreign directory, or one with another export."""
    async with engine.connect() as connection:
        run = await get_run(connection, run_name)
        new = await _new(connection, run, form, wanted)
    with claimed(out, new) as manifest:
        if manifest.done:
            return _done(manifest, out, already=True)
        bound = Bound(manifest.as_of, manifest.since)
        async with snapshot(engine) as connection:
            total = await count(connection, run, wanted, bound)
        writer = _Writer(form, out, manifest=manifest, run=run, total=total, tick=tick)
        while manifest.section < len(manifest.sections):
            section = manifest.sections[manifest.section]
            await _section(engine, writer, run, replace(wanted, **section), bound)
            manifest.section, manifest.after = manifest.section + 1, None
        await writer.finish()
        return _done(manifest, out)


async def _section(
    engine: AsyncEngine, writer: "_Writer", run: StoredRun, wanted: AttemptFilters, bound: Bound
) -> None:
    async with aclosing(each_attempt(engine, run, wanted, bound, after=writer.manifest.after)) as attempts:
        async for attempt in attempts:
            await writer.add(attempt)
    await writer.end_part()


async def _new(connection: AsyncConnection, run: StoredRun, form: Format, wanted: AttemptFilters) -> Manifest:
    now, created = await clock_and_created(connection, run.run_id)
    await check_wanted(connection, run, wanted)
    sections: list[dict[str, Any]] = [{}]
    if columns := form.split():
        sections = await group_sections(connection, run.run_id, columns, wanted)
    return Manifest(
        export=form.name,
        run=run.name,
        created=created,
        selection={**wanted.plain(), **form.options()},
        as_of=now,
        since=read_since(wanted.since, now),
        sections=sections,
    )


class _Writer:
    """Writes attempts into parts, and the manifest after each part."""

    def __init__(
        self, form: Format, out: Path, *, manifest: Manifest, run: StoredRun, total: int, tick: Tick
    ) -> None:
        self.manifest = manifest
        self._form, self._out, self._run, self._total, self._tick = form, out, run, total, tick
        self._in_part = self._steps = 0
        self._last: tuple[int, int] | None = None
        self._tick(manifest.attempts, total)

    async def add(self, attempt: RecordedAttempt) -> None:
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
        """Files first, then the manifest: after a crash between the two, the same part is written again."""
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


def _done(manifest: Manifest, out: Path, *, already: bool = False) -> ExportSummary:
    return ExportSummary(
        export=manifest.export,
        run=manifest.run,
        out=str(out),
        attempts=manifest.attempts,
        steps=manifest.steps,
        parts=manifest.part,
        selection=manifest.selection,
        already=already,
    )
