"""Identifies a process beyond its pid: a pid is reused, a pid with its start time is not.

Every pid in a file is written with the start time of the process (field 22 of `/proc/<pid>/stat`, clock
ticks since boot) and its boot. No signal is sent unless all three agree. Signals go through a pidfd,
so that a pid reused between the check and the signal is never hit.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import Self

import anyio
import msgspec

from orchestrator.runtime.failpoints import boundary_sync
from sandboxes import procfs


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, uniquely: `started` is in clock ticks since the boot named `boot`."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """The identity of a living process (or of a zombie). Raises ProcessLookupError if it does not exist."""
        found = procfs.stat(pid)
        if found is None:
            raise ProcessLookupError(f"process {pid} does not exist")
        return cls(pid, found.start, _boot())

    @classmethod
    def mine(cls) -> Self:
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        """True while this exact process runs. A zombie is dead: it holds no resource but its pid."""
        found = procfs.stat(self.pid)
        return found is not None and not found.gone and found.start == self.started and _boot() == self.boot

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal to this exact process. False if it is dead."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)

    async def gone(self, timeout_s: float) -> bool:
        """Waits until the process is dead; False if it still lives after `timeout_s` seconds."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            with anyio.move_on_after(timeout_s):
                while self.alive:
                    await anyio.wait_readable(handle)
            return not self.alive
        finally:
            os.close(handle)

    def write(self, path: Path) -> None:
        """Records this identity in a file, atomically."""
        write_atomically(path, msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The identity recorded in a file; None if the file is missing or malformed."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
    """Replaces a file in one step: a reader sees the old content or the new, never a part. `sync` makes the content survive a
    power cut too."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                boundary_sync("file.sync", lambda: os.fsync(file.fileno()))
        boundary_sync("file.rename", lambda: partial.replace(path))
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def rewrite_atomically(path: Path, content: bytes) -> None:
    """As `write_atomically`, for a file that a person owns: its mode and, where this user may, its owner stay, and a link stays a link. Raises
    OSError."""
    file = path.resolve()
    before = file.stat()
    write_atomically(file, content, sync=True)
    file.chmod(S_IMODE(before.st_mode))
    with suppress(PermissionError):
        os.chown(file, before.st_uid, before.st_gid)
