"""The journal keeps every acknowledged message, through kills and torn writes."""

import errno
import io
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import structlog
from structlog.testing import capture_logs

from orchestrator.bus import frames
from orchestrator.bus.base import BusError, Outgoing
from orchestrator.bus.journal import Journal, JournalFull
from orchestrator.runtime.watchdog import WatchdogSettings, watching
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


def message(n: int) -> Outgoing:
    return Outgoing(
        subject="steps.demo.1", msg_id=f"1:1:{n}:step", schema="StepRecorded/1", body=b'{"n":%d}' % n
    )


async def test_an_entry_is_written_while_all_threads_of_the_process_are_taken(tmp_path: Path) -> None:
    threads = anyio.to_thread.current_default_thread_limiter()
    async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
        takers = [object() for _ in range(int(threads.available_tokens))]
        for taker in takers:
            threads.acquire_on_behalf_of_nowait(taker)
        tasks.start_soon(journal.append, message(0))
        try:
            await eventually(journal.pending)
        finally:
            for taker in takers:
                threads.release_on_behalf_of(taker)


async def test_entries_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    async with Journal.open(tmp_path) as journal:
        for n in range(5):
            await journal.append(message(n))
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(n) for n in range(5)]


async def test_settled_entries_do_not_come_back_and_numbers_are_never_reused(tmp_path: Path) -> None:
    async with Journal.open(tmp_path) as journal:
        first = await journal.append(message(0))
        await journal.settle([first.n])
        second = await journal.append(message(1))
    async with Journal.open(tmp_path) as journal:
        assert [entry.n for entry in journal.pending()] == [second.n]
        third = await journal.append(message(2))
        assert third.n > second.n


async def test_concurrent_appends_share_syncs_and_all_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = 0
    original = Journal._write_durably

    def counted(self: Journal, data: bytes) -> None:
        nonlocal syncs
        syncs += 1
        original(self, data)

    monkeypatch.setattr(Journal, "_write_durably", counted)
    async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
        for n in range(100):
            tasks.start_soon(journal.append, message(n))
    assert syncs < 50
    async with Journal.open(tmp_path) as journal:
        assert {entry.message.msg_id for entry in journal.pending()} == {
            message(n).msg_id for n in range(100)
        }


@pytest.mark.parametrize("cut", [1, 7, 12, 40])
async def test_a_torn_tail_is_cut_and_what_was_acknowledged_before_it_stays(tmp_path: Path, cut: int) -> None:
    async with Journal.open(tmp_path) as journal:
        await journal.append(message(0))
        await journal.append(message(1))
    (segment,) = tmp_path.glob("*.journal")
    segment.write_bytes(segment.read_bytes()[:-cut])
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(0)]
        assert journal.torn_bytes > 0


async def test_segments_without_open_entries_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.bus.journal.SEGMENT_BYTES", 200)
    async with Journal.open(tmp_path) as journal:
        entries = [await journal.append(message(n)) for n in range(20)]
        assert len(list(tmp_path.glob("*.journal"))) > 5
        await journal.settle([entry.n for entry in entries])
        await journal.append(message(99))
        assert len(list(tmp_path.glob("*.journal"))) <= 2


async def test_an_old_segment_that_is_gone_or_cannot_be_removed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.bus.journal.SEGMENT_BYTES", 200)
    unlink, read_only = Path.unlink, True

    def refused(path: Path, missing_ok: bool = False) -> None:
        if read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    async with Journal.open(tmp_path) as journal:
        entries = [await journal.append(message(n)) for n in range(6)]
        segments = sorted(tmp_path.glob("*.journal"))
        segments[0].rename(tmp_path / "taken away")
        with capture_logs() as logs:
            await journal.settle([entry.n for entry in entries[:4]])
        assert [(line["event"], line["file"]) for line in logs] == [("journal.not_removed", str(segments[0]))]
        assert sorted(tmp_path.glob("*.journal")) == segments[1:], "removed in order"
        read_only = False
        await journal.settle([entries[4].n])
        assert sorted(tmp_path.glob("*.journal")) == segments[2:]
        assert [entry.n for entry in journal.pending()] == [entries[5].n]
        await journal.append(message(99))
    async with Journal.open(tmp_path) as journal:
        assert [entry.message.msg_id for entry in journal.pending()] == ["1:1:5:step", "1:1:99:step"]


async def test_a_second_process_is_refused_with_the_directory_named(tmp_path: Path) -> None:
    async with Journal.open(tmp_path):
        with pytest.raises(BusError, match="is held by another process"):
            async with Journal.open(tmp_path):
                pass


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process grows past `size` bytes: writing more fails with EFBIG, as a full disk does with ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("length", [300, 20_000])
async def test_what_the_disk_refused_is_never_pending_and_never_comes_back(
    tmp_path: Path, length: int
) -> None:
    large = Outgoing(
        subject="steps.demo.1", msg_id="1:1:9:step", schema="StepRecorded/1", body=b'"%s"' % (b"x" * length)
    )
    async with Journal.open(tmp_path) as journal:
        await journal.append(message(0))
        with files_end_at(400):
            for _ in range(3):
                with pytest.raises(JournalFull, match="free disk space"):
                    await journal.append(large)
                assert [entry.message for entry in journal.pending()] == [message(0)]
        await journal.append(message(1))
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(0), message(1)]
        assert journal.torn_bytes == 0


async def test_a_segment_that_cannot_be_started_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.bus.journal.SEGMENT_BYTES", 1)
    async with Journal.open(tmp_path) as journal:
        tmp_path.joinpath("00000002.journal").touch()  # in the way of the next segment
        await journal.append(message(0))
        await journal.append(message(1))
        tmp_path.joinpath("00000002.journal").unlink()
        await journal.append(message(2))
        assert [entry.message for entry in journal.pending()] == [message(n) for n in range(3)]
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(n) for n in range(3)]


async def test_a_refused_segment_that_cannot_be_removed_is_not_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.bus.journal.SEGMENT_BYTES", 1)

    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    async with Journal.open(tmp_path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr("orchestrator.bus.journal.os.fsync", fails)
            patch.setattr(Path, "unlink", fails)
            await journal.append(message(0))
        assert len(list(tmp_path.glob("*.journal"))) == 2, "it still lies there"
        await journal.append(message(1))
        await journal.append(message(2))
        assert [len(segment.open_entries) for segment in journal._segments] == [2, 1, 0]
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(n) for n in range(3)]
        assert not journal.damaged_bytes and not journal.torn_bytes


async def test_a_disk_that_takes_no_segment_is_named_at_start(tmp_path: Path) -> None:
    with files_end_at(0), pytest.raises(JournalFull, match="free disk space"):
        async with Journal.open(tmp_path):
            pass


async def test_a_full_disk_refuses_every_waiting_entry_and_keeps_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Journal.open(tmp_path) as journal:
        await journal.append(message(0))
        with monkeypatch.context() as patch:

            def refuse(self: Journal, data: bytes) -> None:
                self._file.write(data[: len(data) // 2])
                self._file.flush()
                raise OSError(28, "No space left on device")

            patch.setattr(Journal, "_write_durably", refuse)
            refused = 0

            async def try_append(n: int) -> None:
                nonlocal refused
                with pytest.raises(JournalFull, match="No space left"):
                    await journal.append(message(n))
                refused += 1

            async with anyio.create_task_group() as tasks:
                for n in (1, 3, 4):
                    tasks.start_soon(try_append, n)
            assert refused == 3
        await journal.append(message(2))
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(0), message(2)]


class Failing(io.FileIO):
    """A segment on a disk that fails: half of every write comes through, and that half cannot be removed."""

    broken = True
    stuck = True

    def write(self, data: object) -> int:
        whole = bytes(data)  # type: ignore[call-overload]
        if not self.broken:
            return super().write(whole)
        super().write(whole[: len(whole) // 2])
        raise OSError(5, "Input/output error")

    def truncate(self, size: int | None = None) -> int:
        if self.stuck:
            raise OSError(30, "Read-only file system")
        return super().truncate(size)


async def test_a_tail_that_cannot_be_taken_back_refuses_every_waiter_and_all_that_comes_until_it_can(
    tmp_path: Path,
) -> None:
    async with Journal.open(tmp_path) as journal:
        await journal.append(message(0))
        (segment,) = tmp_path.glob("*.journal")
        journal._file.close()
        journal._file = failing = Failing(segment, "r+b")
        failing.seek(segment.stat().st_size)
        refused: list[int] = []

        async def try_append(n: int) -> None:
            with pytest.raises(JournalFull, match="cannot be written"):
                await journal.append(message(n))
            refused.append(n)

        async with anyio.create_task_group() as tasks:
            for n in (1, 2, 3):
                tasks.start_soon(try_append, n)
        assert sorted(refused) == [1, 2, 3]
        failing.broken = False  # it would take more: behind a part of a frame, where no reader finds it
        torn = segment.read_bytes()
        for n in (4, 5):
            with pytest.raises(JournalFull, match="Read-only"):
                await journal.append(message(n))
        assert segment.read_bytes() == torn and [e.message for e in journal.pending()] == [message(0)]
        failing.stuck = False
        await journal.append(message(6))
        assert [entry.message for entry in journal.pending()] == [message(0), message(6)]
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(0), message(6)]
        assert journal.torn_bytes == journal.damaged_bytes == 0


@pytest.fixture
def fresh_loggers() -> Iterator[None]:
    """Loggers that were used before keep their processors, which a captured log replaces."""
    structlog.configure(cache_logger_on_first_use=False)
    yield
    structlog.reset_defaults()


async def written(directory: Path, *numbers: int) -> Path:
    """A segment with messages, closed."""
    async with Journal.open(directory) as journal:
        for n in numbers:
            await journal.append(message(n))
    return max(directory.glob("*.journal"))


def flip(segment: Path, at: int) -> bytes:
    """Change one byte; returns the content of the file then."""
    data = bytearray(segment.read_bytes())
    data[at] ^= 0xFF
    segment.write_bytes(data)
    return bytes(data)


@pytest.mark.usefixtures("fresh_loggers")
async def test_a_bad_frame_costs_itself_alone_and_the_file_is_kept_and_named(tmp_path: Path) -> None:
    segment = await written(tmp_path, 0, 1, 2, 3)
    length = (segment.stat().st_size - len(frames.MAGIC)) // 4
    damaged = flip(segment, len(frames.MAGIC) + length + length // 2)
    with capture_logs() as logs, watching("test", WatchdogSettings()) as dog:
        async with Journal.open(tmp_path) as journal:
            assert [entry.message for entry in journal.pending()] == [message(0), message(2), message(3)]
            assert (journal.damaged_bytes, journal.torn_bytes) == (length, 0)
            copy = tmp_path / "00000001.journal.corrupt"
            assert copy.read_bytes() == damaged
            await journal.settle([entry.n for entry in journal.pending()])
            await journal.append(message(9))
            assert copy.read_bytes() == damaged and not segment.exists()
    (line,) = [line for line in logs if line["event"] == "journal.damaged"]
    assert (line["file"], line["bytes"], line["kept"]) == (str(segment), length, str(copy))
    assert line["log_level"] == "error"
    assert (
        dog.registry.get_sample_value("penstock_journal_damaged_bytes_total", {"process": "test"}) == length
    )


@pytest.mark.usefixtures("fresh_loggers")
async def test_a_torn_segment_raises_no_alarm_at_this_start_nor_at_the_next(tmp_path: Path) -> None:
    segment = await written(tmp_path, 0, 1)
    segment.write_bytes(segment.read_bytes()[:-5])
    with capture_logs() as logs:
        for n in (2, 3):
            assert (await written(tmp_path, n)).exists()
        # Killed during the start of a segment: it contains nothing.
        (tmp_path / "00000009.journal").write_bytes(frames.MAGIC[:7])
        async with Journal.open(tmp_path) as journal:
            assert [entry.message for entry in journal.pending()] == [message(n) for n in (0, 2, 3)]
    assert logs == [] and not list(tmp_path.glob("*.corrupt"))


@pytest.mark.usefixtures("fresh_loggers")
async def test_an_earlier_segment_that_ends_early_is_an_alarm(tmp_path: Path) -> None:
    earlier = await written(tmp_path, 0, 1)
    await written(tmp_path, 2)
    earlier.write_bytes(earlier.read_bytes()[:-5])
    with capture_logs() as logs:
        async with Journal.open(tmp_path) as journal:
            assert [entry.message for entry in journal.pending()] == [message(0), message(2)]
    assert [line["event"] for line in logs] == ["journal.damaged"] and logs[0]["file"] == str(earlier)
    assert (tmp_path / f"{earlier.name}.corrupt").exists()


@pytest.mark.usefixtures("fresh_loggers")
@pytest.mark.parametrize("whole", [True, False])
async def test_a_file_that_does_not_begin_as_a_journal_is_an_alarm_and_its_whole_frames_are_used(
    tmp_path: Path, whole: bool
) -> None:
    segment = await written(tmp_path, 0, 1)
    flip(segment, 3)
    if not whole:
        segment.write_bytes(b"something else, of another program")
    with capture_logs() as logs:
        async with Journal.open(tmp_path) as journal:
            assert [e.message for e in journal.pending()] == ([message(0), message(1)] if whole else [])
            await journal.append(message(2))
    assert [line["event"] for line in logs] == ["journal.damaged"]
    assert logs[0]["bytes"] == (len(frames.MAGIC) if whole else 34)
    assert (tmp_path / "00000001.journal.corrupt").exists()


async def test_zeros_that_a_lost_power_left_behind_are_a_torn_tail(tmp_path: Path) -> None:
    segment = await written(tmp_path, 0)
    with segment.open("ab") as file:
        file.write(bytes(100))
    async with Journal.open(tmp_path) as journal:
        assert [entry.message for entry in journal.pending()] == [message(0)]
        assert (journal.torn_bytes, journal.damaged_bytes) == (100, 0)
