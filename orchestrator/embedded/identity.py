"""Which process a number means: a pid is reused, a pid with its start time is not.

Every pid that is written to a file is written with the start time of the process (field 22 of `/proc/<pid>/stat`, clock
ticks since boot) and the boot it belongs to, and no signal is sent before all three agree. Signals go through a pidfd,
so that a pid reused between the check and the signal is never hit.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import anyio
import msgspec

from orchestrator.failpoints import boundary_sync


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """Fields 3 and later of `/proc/<pid>/stat` (index 0 is the state), or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for ever: `started` is in clock ticks since the boot named `boot`."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """The identity of a living process (or of a zombie). Raises ProcessLookupError when there is none."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(pid, int(stat[19]), _boot())

    @classmethod
    def mine(cls) -> Self:
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        """True while this very process runs. A zombie is dead: it holds no resource but its number."""
        stat = _stat(self.pid)
        return (
            stat is not None
            and stat[0] not in "ZX"
            and int(stat[19]) == self.started
            and _boot() == self.boot
        )

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal to this process and to no other. False when it is dead."""
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
        """Waits until the process is dead; False when it still lives after `timeout_s` seconds."""
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
        """The identity recorded in a file; None when there is no file or it is not readable as one."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Replaces a file in one step: a reader sees the old content or the new, never a part. `sync` makes the content survive a
    power cut too."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            boundary_sync("file.sync", lambda: os.fsync(file.fileno()))
    boundary_sync("file.rename", lambda: partial.replace(path))
