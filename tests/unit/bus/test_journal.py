"""The journal keeps what it acknowledged, through kills and torn writes."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.bus.base import BusError, Outgoing
from orchestrator.bus.journal import Journal, JournalFull

pytestmark = pytest.mark.anyio


def message(n: int) -> Outgoing:
    return Outgoing("steps.demo.1", f"1:1:{n}:step", "StepRecorded/1", b'{"n":%d}' % n)


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
    large = Outgoing("steps.demo.1", "1:1:9:step", "StepRecorded/1", b'"%s"' % (b"x" * length))
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


async def test_a_segment_that_cannot_be_begun_leaves_the_old_one_in_use(
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
