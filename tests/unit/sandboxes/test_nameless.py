"""Files without a name that processes hold are found, each once, by whatever they are held."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from sandboxes import nameless, procfs

MIB = 1 << 20
BEGINS = """
import ctypes, mmap, os, threading
held = os.open(".", os.O_RDWR | os.O_TMPFILE)
os.write(held, bytes(1 << 20))
libc = ctypes.CDLL(None)
def up():
    print("up", flush=True)
    threading.Event().wait()
"""
ENDS_A_THREAD = {"x86_64": 60, "aarch64": 93}


@contextmanager
def running(script: str, directory: Path) -> Iterator[int]:
    """A program that holds 1 MiB without a name and does what `script` says, once it has: its pid."""
    argv = [sys.executable, "-IS", "-c", f"{BEGINS}\n{script}\nup()"]
    nothing = subprocess.DEVNULL  # pytest's own files have no name
    with subprocess.Popen(
        argv, cwd=directory, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, start_new_session=True
    ) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"up\n"
            yield program.pid
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def family(pid: int) -> list[int]:
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@pytest.fixture(params=["compared", "not compared"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernel compares the descriptors of threads, as for root; not for root in a pod."""
    if request.param == "not compared":
        monkeypatch.setattr(nameless, "_KCMP", -1)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("", 1),
        ("others = [os.dup(held) for _ in range(9)]", 1),
        ("os.fork() == 0 and threading.Event().wait()", 1),
        ("m = mmap.mmap(held, 1 << 20)", 1),
        ("m = mmap.mmap(held, 1 << 20); os.close(held)", 1),
        ("open('f', 'w+b').write(bytes(1 << 20)); f = open('f'); os.link('f', 'g'); os.unlink('f')", 1),
        ("f = open('f', 'w+b'); f.write(bytes(1 << 20)); f.flush(); os.unlink('f')", 2),
        ("os.write(os.memfd_create('m'), bytes(1 << 20)); mmap.mmap(-1, 1 << 20).write(bytes(1 << 20))", 1),
        ("os.write(os.open('/dev/shm', os.O_RDWR | os.O_TMPFILE), bytes(1 << 20))", 1),
        ("d = '/'.join(['d' * 250] * 15); os.makedirs(d); os.chdir(d); os.mkdir('e' * 250); os.chdir('e' * 250); "
         "f = open('f' * 250, 'w+b'); f.write(bytes(1 << 20)); f.flush(); os.unlink('f' * 250)", 2),
        ("def apart():\n    libc.unshare(0x400)\n    f = os.open('.', os.O_RDWR | os.O_TMPFILE)\n    os.write(f, bytes(1 << 20))\n"
         "    up()\nthreading.Thread(target=apart).start()\nthreading.Event().wait()", 2),
        (f"threading.Thread(target=up).start()\nlibc.syscall({ENDS_A_THREAD.get(os.uname().machine, 0)}, 0)", 1),
    ],
    ids=["open", "duplicates", "two processes", "open and mapped", "mapped", "with another name", "deleted", "memory",
         "shared memory", "a long path", "by a thread alone", "the first thread has ended"],
)  # fmt: skip
def test_a_file_that_a_process_holds_without_a_name_counts_once(
    script: str, files: int, tmp_path: Path
) -> None:
    with running(script, tmp_path) as pid:
        assert nameless.Held(family(pid), [tmp_path]).on_disk() == (files * MIB, files)
    assert nameless.Held([pid], [tmp_path]).on_disk() == (0, 0)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped files cannot be looked at, as for all but root."""
    look = os.stat

    def refuses(path: str | int, **how: int) -> os.stat_result:
        if "map_files" in str(path):
            raise PermissionError(path)
        return look(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refuses)


@pytest.mark.usefixtures("refused")
def test_where_a_mapped_file_cannot_be_looked_at_its_mapping_counts(tmp_path: Path) -> None:
    with running("m = mmap.mmap(held, 1 << 20)", tmp_path) as pid:
        assert nameless.Held([pid], [tmp_path]).on_disk() == (MIB, 1)
    with running("m = mmap.mmap(held, 1 << 20); os.close(held)", tmp_path) as pid:
        assert nameless.Held([pid], [tmp_path]).on_disk() == (MIB, 1)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("how", ["access=mmap.ACCESS_COPY", "prot=mmap.PROT_READ | mmap.PROT_EXEC"])
def test_a_mapping_that_writes_into_no_file_may_be_of_an_image_and_does_not_count(
    how: str, tmp_path: Path
) -> None:
    with running(f"m = mmap.mmap(held, 1 << 20, {how}); os.closerange(3, 99)", tmp_path) as pid:
        assert nameless.Held([pid], [tmp_path]).on_disk() == (0, 0)


def test_a_file_that_is_mapped_under_another_device_counts_once(tmp_path: Path) -> None:
    with running("m = mmap.mmap(held, 1 << 20)", tmp_path) as pid:
        held = nameless.Held([pid], [tmp_path])
        ((_, inode),) = held.files
        held.mapped[0, inode] = MIB
        assert held.on_disk() == (MIB, 1)


def test_our_own_descriptor_may_be_closed(tmp_path: Path) -> None:
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    with running("", tmp_path) as pid:
        assert nameless.Held([pid], [tmp_path]).on_disk(ignored=(closed,)) == (MIB, 1)


def test_more_descriptors_than_are_looked_at_count_as_too_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running("others = [os.dup(held) for _ in range(99)]", tmp_path) as pid:
        monkeypatch.setattr(nameless, "MAX_LOOKS", 99)
        assert nameless.Held([pid], [tmp_path]).on_disk()[1] == nameless.TOO_MANY
        monkeypatch.setattr(nameless, "MAX_LOOKS", 999)
        assert nameless.Held([pid], [tmp_path]).on_disk() == (MIB, 1)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    "first",
    ["", f"libc.syscall({ENDS_A_THREAD.get(os.uname().machine, 0)}, 0)"],
    ids=["the first thread lives", "the first thread has ended"],
)
def test_the_descriptors_that_threads_share_are_looked_at_once(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "others = [os.dup(held) for _ in range(99)]\n"
        "for _ in range(8): threading.Thread(target=threading.Event().wait).start()\n"
        f"threading.Thread(target=up).start()\n{first or 'threading.Event().wait()'}"
    )
    monkeypatch.setattr(nameless, "MAX_LOOKS", 300)
    with running(script, tmp_path) as pid:
        assert nameless.Held([pid], [tmp_path]).on_disk() == (MIB, 1)


def test_a_first_thread_that_ends_during_the_reading_has_its_descriptors_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "others = [os.dup(held) for _ in range(99)]\n"
        "for _ in range(8): threading.Thread(target=threading.Event().wait).start()"
    )
    monkeypatch.setattr(nameless, "MAX_LOOKS", 300)
    with running(script, tmp_path) as pid:
        monkeypatch.setattr(nameless, "_has_descriptors", lambda thread: thread != pid)
        monkeypatch.setattr(nameless, "_compare_descriptors", lambda first, _: 1 if first == pid else 0)
        assert nameless.Held([pid], [tmp_path]).on_disk() == (MIB, 1)


def test_where_threads_are_not_compared_there_is_an_end_to_their_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "for _ in range(8): threading.Thread(target=threading.Event().wait).start()"
    monkeypatch.setattr(nameless, "_KCMP", -1)
    monkeypatch.setattr(nameless, "MAX_NAMES", 0)
    listing = Mock(wraps=os.listdir)
    with running(script, tmp_path) as pid:
        monkeypatch.setattr(os, "listdir", listing)
        assert nameless.Held([pid], [tmp_path]).on_disk() == (MIB, 1)
    assert listing.call_count == 3, "the threads, and the descriptors of the first and the second"


def test_where_processes_write_to_memory_it_counts_as_a_disk() -> None:
    with running(
        "f = os.open('/dev/shm', os.O_RDWR | os.O_TMPFILE); os.write(f, bytes(1 << 20))", Path("/dev/shm")
    ) as pid:
        assert nameless.Held([pid], ["/dev/shm"]).on_disk() == (2 * MIB, 2)


def test_what_is_mapped_of_a_memory_file_can_be_taken_off(tmp_path: Path) -> None:
    memory = "f = os.memfd_create('m'); os.write(f, bytes(2 << 20)); m = mmap.mmap(f, 2 << 20); m.read()"
    with running(memory, tmp_path) as pid:
        assert nameless.Held([pid], [tmp_path]).in_memory() == 2 * MIB
        assert 2 * MIB <= procfs.mapped_memory_files([pid]) < 3 * MIB
