"""The journal: messages on their way to Postgres. Their sender keeps them until Postgres has them.

A message is durable when `append` returns; concurrent appends share one fsync. `settle` drops it once the data pool has
stored or refused it. Format (fixed): segment files `NNNNNNNN.journal` of frames (bus.frames).

A kill may cut off the end of the last segment. That tail was never acknowledged, and the journal cuts it. Any other damage is an alarm
(`journal.damaged`, metric `penstock_journal_damaged_bytes_total`): a copy of the file is kept as `NAME.corrupt` for a person, and every whole
frame of it is used.

While the data pool is unreachable the journal grows on disk and, with the bodies to send, in memory. A process that can make its own clients
wait does so before it produces more (`room`). Both then stay within `limit_bytes` plus the work already in progress when the limit was reached.

The journal is *not* a queue. Order is kept, but a settled entry may return after a crash; its message id makes that harmless.
"""

import fcntl
import io
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from orchestrator.bus.base import BusError, Outgoing
from orchestrator.bus.frames import MAGIC, Put, SegmentContent, Settled, frame, read
from orchestrator.runtime.failpoints import boundary_sync
from orchestrator.runtime.log import get
from orchestrator.runtime.watchdog import on_watch

log = get(__name__)

SEGMENT_BYTES = 16 * 1024 * 1024
LIMIT_BYTES = 512 * 1024 * 1024


class JournalFull(BusError):
    """The disk refuses the journal (full, read-only): nothing was accepted. This is back-pressure, not loss."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One kept message; `n` grows by one per entry and is never used twice in a journal."""

    n: int
    message: Outgoing


@dataclass(slots=True)
class _Segment:
    path: Path
    open_entries: set[int]
    stays: bool = False  # it could not be deleted


def _write_all(file: io.FileIO, data: bytes) -> None:
    """Write all of `data`, even if the kernel accepts little at a time."""
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]


class Journal:
    """Open it with `Journal.open(directory)`. One process per directory (a lock file); safe for concurrent tasks."""

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._roomy = anyio.Event()  # set and replaced when entries are dropped
        self.held_bytes = 0  # bodies of the kept entries
        self._segments: list[_Segment] = []
        self._entries: dict[int, JournalEntry] = {}
        self._next = 1
        self._file: io.FileIO  # unbuffered: data that the disk refused must not be written later
        self._size = 0  # durable bytes of the file
        # The segment that was refused last: whether the file exists or not, it holds no entry.
        self._stillborn: Path | None = None
        self._tail_known = True  # the file has nothing behind `_size`
        self._buffer: list[tuple[JournalEntry | None, bytes]] = []  # frames for the next flush; None: settled
        self._refused: dict[int, JournalFull] = {}
        self._flush = anyio.Lock(fast_acquire=True)
        # Its own: no other work of the process, however much of it waits for a thread, delays a write.
        self._thread = anyio.CapacityLimiter(1)
        self.torn_bytes = 0  # bytes that the last open cut off
        self.damaged_bytes = 0  # bytes that the last open found outside every frame

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path, limit_bytes: int = LIMIT_BYTES) -> AsyncIterator["Journal"]:
        """Read the existing entries, cut a torn tail, and start a new segment. Raises BusError if another process holds the journal or
        the disk accepts no new segment."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusError(
                    f"the journal {directory} is held by another process: stop it, or use another directory"
                ) from None
            journal = cls(directory, limit_bytes)
            try:
                journal._recover()
                journal._begin_segment()
            except OSError as error:
                raise journal._full(error) from error
            try:
                yield journal
            finally:
                journal._file.close()

    def pending(self) -> Sequence[JournalEntry]:
        """Every durable entry that is not settled, oldest first."""
        return list(self._entries.values())

    @property
    def full(self) -> bool:
        """Whether the journal has reached its limit: see `room`."""
        return self.held_bytes >= self._limit_bytes

    async def room(self) -> None:
        """Wait while the journal is at its limit. Back-pressure for a process about to produce more; `append` itself accepts everything."""
        while self.full:
            await self._roomy.wait()

    def holds(self, n: int) -> bool:
        """Whether entry `n` is still unsettled."""
        return n in self._entries

    async def append(self, message: Outgoing) -> JournalEntry:
        """Keep `message`; durable on return. If it raises JournalFull, nothing was kept."""
        entry = JournalEntry(self._next, message)
        self._next += 1
        put = Put(
            n=entry.n,
            subject=message.subject,
            msg_id=message.msg_id,
            schema=message.schema,
            body=msgspec.Raw(message.body),
        )
        self._buffer.append((entry, frame(put)))
        async with self._flush:
            # The first task with the lock writes for all tasks that wait behind it.
            if self._buffer:
                await self._write()
        if (refusal := self._refused.pop(entry.n, None)) is not None:
            raise refusal
        return entry

    async def settle(self, ns: Iterable[int]) -> None:
        """Drop entries that the data pool has stored or refused. Delete old segments without open entries; one that cannot be deleted is tried again
        by the next call."""
        pending = [n for n in ns if n in self._entries]
        if not pending:
            return
        for n in pending:
            self._forget(n)
        self._roomy.set()
        self._roomy = anyio.Event()
        # Goes with the next flush: losing it only repeats a no-op.
        self._buffer.append((None, frame(Settled(pending))))
        # In order: a later segment may hold what settles the entries of an earlier one.
        while len(self._segments) > 1 and not self._segments[0].open_entries:
            try:
                self._segments[0].path.unlink(missing_ok=True)
            except OSError as error:
                if not self._segments[0].stays:
                    log.warning("journal.not_removed", file=str(self._segments[0].path), error=error.strerror)
                self._segments[0].stays = True
                break
            del self._segments[0]

    def _keep(self, entry: JournalEntry, segment: _Segment) -> None:
        self._entries[entry.n] = entry
        self.held_bytes += len(entry.message.body)
        segment.open_entries.add(entry.n)

    def _forget(self, n: int) -> None:
        self.held_bytes -= len(self._entries.pop(n).message.body)
        for segment in self._segments:
            segment.open_entries.discard(n)

    async def _write(self) -> None:
        batch, self._buffer = self._buffer, []
        data = b"".join(frame for _, frame in batch)
        try:
            if not self._tail_known:
                self._cut()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._write_durably, data, limiter=self._thread)
        except OSError as error:
            # Every entry of the batch is refused, whether or not the part that was written can be cut again.
            refusal = self._full(error)
            self._refused |= {entry.n: refusal for entry, _ in batch if entry is not None}
            try:
                self._cut()
            except OSError as second_error:
                log.error(
                    "journal.tail_unknown", file=str(self._segments[-1].path), error=second_error.strerror
                )
            return
        for entry, _ in batch:
            # Only now may it be sent: no reader sees data that the disk may still refuse.
            if entry is not None:
                self._keep(entry, self._segments[-1])
        self._size += len(data)
        if self._size >= SEGMENT_BYTES:
            full = self._file
            try:
                self._begin_segment()
            except OSError as error:  # the old segment stays in use; every entry of it is durable
                log.warning("journal.no_new_segment", directory=str(self._directory), error=error.strerror)
            else:
                full.close()

    def _cut(self) -> None:
        """End the file behind its durable part. If this raises OSError, nothing may be written until a later call succeeds: behind an
        unknown tail an entry might not be found again."""
        self._tail_known = False
        self._file.truncate(self._size)
        self._file.seek(self._size)
        self._tail_known = True

    def _full(self, error: OSError) -> JournalFull:
        return JournalFull(
            f"the journal {self._directory} cannot be written: {error.strerror}; free disk space"
        )

    def _write_durably(self, data: bytes) -> None:
        _write_all(self._file, data)
        boundary_sync("journal.sync", lambda: os.fdatasync(self._file.fileno()))

    def _begin_segment(self) -> None:
        number = int(self._segments[-1].path.stem) + 1 if self._segments else 1
        path = self._directory / f"{number:08d}.journal"
        file = path.open("wb" if path == self._stillborn else "xb", buffering=0)
        try:
            _write_all(file, MAGIC)
            boundary_sync("journal.segment", lambda: os.fsync(file.fileno()))
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                boundary_sync("journal.named", lambda: os.fsync(directory))
            finally:
                os.close(directory)
        except OSError:
            file.close()
            self._stillborn = path
            with suppress(OSError):  # the file stays and holds no entry
                path.unlink()
            raise
        self._file, self._size = file, len(MAGIC)
        self._segments.append(_Segment(path, set()))

    def _recover(self) -> None:
        paths = sorted(self._directory.glob("*.journal"))
        for path in paths:
            data = path.read_bytes()
            content = read(data)
            if content.damaged or (content.torn and path is not paths[-1]):
                self._alarm(path, content)
            elif content.torn:
                self.torn_bytes += content.torn
                if not content.end:  # killed while it was being created
                    path.unlink()
                    break
                os.truncate(path, content.end)
            segment = _Segment(path, set())
            self._segments.append(segment)
            for record in content.records:
                if isinstance(record, Settled):
                    for n in record.ns:
                        if n in self._entries:
                            self._forget(n)
                    self._next = max([self._next, *(n + 1 for n in record.ns)])
                else:
                    message = Outgoing(
                        subject=record.subject,
                        msg_id=record.msg_id,
                        schema=record.schema,
                        body=bytes(record.body),
                    )
                    self._keep(JournalEntry(record.n, message), segment)
                    self._next = max(self._next, record.n + 1)
        while self._segments and not self._segments[0].open_entries:
            last = self._segments.pop(0)
            if not self._segments:  # keep the numbering: a number is never used twice
                self._segments.append(last)
                break
            last.path.unlink()

    def _alarm(self, path: Path, content: SegmentContent) -> None:
        """Acknowledged entries may be missing: log it and keep a copy, because the file is deleted once its other entries are settled."""
        damaged, copy = content.damaged + content.torn, path.with_name(f"{path.name}.corrupt")
        self.damaged_bytes += damaged
        copied_to = str(copy)
        if not copy.exists():  # otherwise an earlier open found the damage
            try:
                shutil.copyfile(path, copy)
            except OSError as error:
                copy.unlink(missing_ok=True)
                copied_to = f"nowhere: {error.strerror}"
        log.error(
            "journal.damaged",
            file=str(path),
            bytes=damaged,
            frames=len(content.records),
            kept=copied_to,
            consequence="entries in these bytes are lost; the others are sent",
        )
        if (watchdog := on_watch()) is not None:
            watchdog.damaged(damaged)
