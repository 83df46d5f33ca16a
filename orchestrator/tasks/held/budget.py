"""The joint limits of all programs of one verification, and their usage so far, in two files.

`limits` is next to the tests and belongs to the platform. It is JSON, since it holds names of files that the agent chose. The ledger is lines of
text without such names, in the judge's log directory, which programs under test cannot write.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

LEDGER = ".penstock/programs"
"""Path below the directory of logs. One line when a program starts (`begin ID AT`), one when all its processes are dead
(`end ID AT CPU_S BYTES BREACH`); AT: seconds since the test script's start."""
MARK = b"PENSTOCK_UNTRUSTED="


class HeldBudget:
    """Limits from the platform's file; without it, the defaults below. `until_s`: when programs are ended, in seconds since the test script's start.
    `private`: no other sandbox shares this one's /dev/shm and System V objects. `home`, `tmp`: files of the environment there, which the program may
    read."""

    def __init__(self, path: str) -> None:
        self.until_s = 0.0
        self.cpu_s = 600.0
        self.memory_bytes = 512 << 20
        self.disk_bytes = 256 << 20
        self.disk_files = 20_000
        self.output_bytes = 32 << 20
        self.processes = 0
        self.private = False
        self.home: list[str] = []
        self.tmp: list[str] = []
        with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            for name, value in json.load(file).items():
                setattr(self, name, type(getattr(self, name))(value))


class Ledger:
    """Usage of this verification's programs so far; `directory`: the judge's log directory."""

    def __init__(self, directory: str) -> None:
        self.began = _judge_began()
        self.cpu_s = 0.0
        self.bytes = 0
        self._fd = -1
        self._id = f"{os.getpid()}.{time.monotonic_ns()}"
        path = os.path.join(directory, LEDGER)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._fd = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(self._fd, encoding="ascii", closefd=False) as lines:
                for line in lines:
                    words = line.split()
                    if len(words) == 6 and words[0] == "end":
                        self.cpu_s += float(words[3])
                        self.bytes += int(words[4])

    def age_s(self) -> float:
        """Seconds since the test script started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.began

    def note_start(self) -> None:
        self._say(f"begin {self._id} {self.age_s():.2f}\n")

    def note_end(self, cpu_s: float, written: int, breach: str) -> None:
        self._say(f"end {self._id} {self.age_s():.2f} {cpu_s:.3f} {written} {breach or '-'}\n")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, line.encode())


def _judge_began() -> float:
    """Start of the test script, on the clock since boot: that of the farthest ancestor with its variables; else that of this process."""
    started, pid = time.clock_gettime(time.CLOCK_BOOTTIME), os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 0:
            with open(f"/proc/{pid}/stat", "rb") as file:
                columns = file.read().rpartition(b")")[2].split()
            with contextlib.suppress(PermissionError), open(f"/proc/{pid}/environ", "rb") as file:
                if MARK in file.read():
                    started = int(columns[19]) / os.sysconf("SC_CLK_TCK")
            pid = int(columns[1])
    return started
