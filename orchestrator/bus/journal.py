"""The journal: messages towards Postgres, kept by their sender until Postgres has them.

A message is durable when `append` returns; concurrent appends share one fsync. It is dropped once `settle` was told that the data pool
has it, or has refused it. Format (fixed): segment files `NNNNNNNN.journal` of frames (bus.frames).

What a kill cut off at the end of the last segment was never acknowledged, and is cut. Any other damage is an alarm (`journal.damaged`, metric
`penstock_journal_damaged_bytes_total`): the file is kept beside itself as `NAME.corrupt` for a person, and every whole frame of it is used.

While the data pool is away the journal grows, on the disk and, with the bodies that are to be sent, in memory. Who can ask its own clients to
wait does so before it makes more (`room`), so both stay within `limit_bytes` and what was under way when that was reached.

What the journal is *not*: a queue. Order is kept, but a settled entry may come back after a crash; its message id makes that harmless.
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
from orchestrator.bus.frames import MAGIC, Content, Put, Settled, frame, read
from orchestrator.failpoints import boundary_sync
from orchestrator.log import get
from orchestrator.watchdog import on_watch

log = get(__name__)

SEGMENT_BYTES = 16 * 1024 * 1024
LIMIT_BYTES = 512 * 1024 * 1024


class JournalFull(BusError):
    """The disk refuses the journal (full, read-only): nothing was accepted. Back-pressure, not loss."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept message; `n` grows by one per entry and is never used twice in a journal."""

    n: int
    message: Outgoing


@dataclass(slots=True)
class _Segment:
    path: Path
    open_entries: set[int]


def _write_all(file: io.FileIO, data: bytes) -> None:
    """Write all of `data`, however little the kernel takes at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class Journal:
    """Open it with `Journal.open(directory)`. One process per directory (a lock file); safe for concurrent tasks."""

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._roomy = anyio.Event()  # set, and replaced, when entries were dropped
        self.held_bytes = 0  # bodies of the entries that are kept
        self._segments: list[_Segment] = []
        self._entries: dict[int, Entry] = {}
        self._next = 1
        self._file: io.FileIO  # unbuffered: what the disk refused must not be written later
        self._size = 0  # of what is durable in it
        self._stillborn: Path | None = (
            None  # the segment that was refused last: there or not, it holds no entry
        )
        self._tail_known = True  # nothing lies behind `_size` in the file
        self._buffer: list[tuple[Entry | None, bytes]] = []  # frames for the next flush; None: settled
        self._refused: dict[int, JournalFull] = {}
        self._flush = anyio.Lock(fast_acquire=True)
        self.torn_bytes = 0  # what the last open had to cut off
        self.damaged_bytes = 0  # and what it found that belongs to no frame

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path, limit_bytes: int = LIMIT_BYTES) -> AsyncIterator["Journal"]:
        """Read what is left, cut a torn tail, and begin a new segment. Raises BusError when another process holds it, or when the
        disk takes no new segment."""
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

    def pending(self) -> Sequence[Entry]:
        """Every durable entry that is not settled, oldest first."""
        return list(self._entries.values())

    @property
    def full(self) -> bool:
        """Whether as much is kept as should be: see `room`."""
        return self.held_bytes >= self._limit_bytes

    async def room(self) -> None:
        """Wait while as much is kept as should be. Back-pressure for whoever is about to make more; `append` itself takes what there is."""
        while self.full:
            await self._roomy.wait()

    def holds(self, n: int) -> bool:
        """Whether entry `n` is still unsettled."""
        return n in self._entries

    async def append(self, message: Outgoing) -> Entry:
        """Keep `message`; durable on return. Raises JournalFull, and then nothing was kept."""
        entry = Entry(self._next, message)
        self._next += 1
        put = Put(entry.n, message.subject, message.msg_id, message.schema, msgspec.Raw(message.body))
        self._buffer.append((entry, frame(put)))
        async with self._flush:
            # Whoever gets the lock first writes for all that wait behind it.
            if self._buffer:
                await self._write()
        if (refusal := self._refused.pop(entry.n, None)) is not None:
            raise refusal
        return entry

    async def settle(self, ns: Iterable[int]) -> None:
        """Drop entries that the data pool has or has refused; old segments without open entries are deleted."""
        known = [n for n in ns if n in self._entries]
        if not known:
            return
        for n in known:
            self._forget(n)
        self._roomy.set()
        self._roomy = anyio.Event()
        self._buffer.append(
            (None, frame(Settled(known)))
        )  # goes with the next flush: losing it only repeats a no-op
        while len(self._segments) > 1 and not self._segments[0].open_entries:
            self._segments.pop(0).path.unlink()

    def _keep(self, entry: Entry, segment: _Segment) -> None:
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
                await anyio.to_thread.run_sync(self._write_durably, data)
        except OSError as error:
            # Every entry of the batch is refused, whatever comes of taking back the part that came through.
            refusal = self._full(error)
            self._refused |= {entry.n: refusal for entry, _ in batch if entry is not None}
            try:
                self._cut()
            except OSError as worse:
                log.error("journal.tail_unknown", file=str(self._segments[-1].path), error=worse.strerror)
            return
        for entry, _ in batch:
            if entry is not None:  # from now on it may be sent: nobody sees what the disk may still refuse
                self._keep(entry, self._segments[-1])
        self._size += len(data)
        if self._size >= SEGMENT_BYTES:
            full = self._file
            try:
                self._begin_segment()
            except OSError as error:  # the old segment goes on; every entry of it is durable
                log.warning("journal.no_new_segment", directory=str(self._directory), error=error.strerror)
            else:
                full.close()

    def _cut(self) -> None:
        """End the file behind what is durable. Raises OSError, and then nothing may be written before this came through: behind a tail that
        nobody knows an entry might not be found again."""
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
            with suppress(OSError):  # it stays, and holds nothing
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
                if not content.end:  # killed while it was begun
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
                    message = Outgoing(record.subject, record.msg_id, record.schema, bytes(record.body))
                    self._keep(Entry(record.n, message), segment)
                    self._next = max(self._next, record.n + 1)
        while self._segments and not self._segments[0].open_entries:
            last = self._segments.pop(0)
            if not self._segments:  # keep the numbering: a number is never used twice
                self._segments.append(last)
                break
            last.path.unlink()

    def _alarm(self, path: Path, content: Content) -> None:
        """Acknowledged entries may be missing: say so, and keep the file, which is deleted once its other entries are settled."""
        damaged, copy = content.damaged + content.torn, path.with_name(f"{path.name}.corrupt")
        self.damaged_bytes += damaged
        kept = str(copy)
        if not copy.exists():  # else it was found damaged before
            try:
                shutil.copyfile(path, copy)
            except OSError as error:
                copy.unlink(missing_ok=True)
                kept = f"nowhere: {error.strerror}"
        log.error(
            "journal.damaged", file=str(path), bytes=damaged, frames=len(content.records), kept=kept,
            consequence="entries in these bytes are lost; the others are sent",
        )  # fmt: skip
        if (dog := on_watch()) is not None:
            dog.damaged(damaged)
