"""Starting one child process so that it cannot outlive its starter unseen.

The child leads its own session and process group (so Ctrl-C in a terminal reaches only the supervisor), gets a signal
from the kernel when the thread that started it dies, and writes its output to a file. No shell is involved.
"""

import contextlib
import ctypes
import errno
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from orchestrator.runtime.failpoints import boundary_sync

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_POLL_INTERVAL_S = 0.2
_OF_THE_PROGRAM = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENOEXEC,
    errno.E2BIG,
)
"""A further try would fail as well. Others say what this machine lacks for the moment: processes, descriptors, memory."""

MAX_LOG_BYTES = 50 * 1024 * 1024


def open_log(path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> int:
    """A file descriptor that appends to `path`. A log that has grown past `max_bytes` is first renamed to `<path>.1`,
    replacing the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > max_bytes:
        with contextlib.suppress(OSError):  # logging continues in the long file
            boundary_sync("log.rename", lambda: path.replace(path.with_name(path.name + ".1")))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def shorten_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Copy a log that has grown past `max_bytes` to `<path>.1`, replacing the previous one, and empty it. Its writers append, so they continue at its
    beginning; what they write between the end of the copy and the cut is lost. Returns whether it did so: not on a full disk."""
    try:
        if path.stat().st_size <= max_bytes:
            return False
        with path.open("r+b") as grown, path.with_name(path.name + ".1").open("wb") as earlier:
            shutil.copyfileobj(grown, earlier, 1 << 20)
            grown.truncate(0)
    except OSError:
        return False
    return True


def last_lines(path: Path, count: int = 12) -> list[str]:
    """The last lines of a log, for people. Empty if the log does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    user: str | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program and returns at once. `env` is the whole environment of the child. `user` is the name of the user that it
    becomes (root only). `descriptors` are inherited. Raises ValueError if the program cannot be executed, OSError if this machine lacks the
    resources for it now.

    The child gets `death_signal` when the calling *thread* ends, so call this from a thread that lives as long as the
    process.
    """
    starter = os.getpid()
    ids = pwd.getpwnam(user) if user is not None else None

    def die_with_starter() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != starter:  # the starter died before the line above
            os._exit(127)

    output = open_log(log)
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=dict(env),
            user=ids.pw_uid if ids else None,
            group=ids.pw_gid if ids else None,
            extra_groups=[] if ids else None,
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=die_with_starter,  # runs after setuid, which would clear the death signal
        )
    except OSError as error:
        if error.errno not in _OF_THE_PROGRAM:
            raise
        raise ValueError(f"{argv[0]} cannot be started: {error.strerror}") from error
    finally:
        os.close(output)


async def reap(child: subprocess.Popen[bytes]) -> int:
    """Waits until the child dies, kills the rest of its process group, and returns its exit status (negative: the
    signal). Works under any event loop; may be cancelled and called again.

    The group is killed while the dead child still holds its pid, so no other group can be hit.
    """
    if child.returncode is None:
        await _dead(child.pid)
        kill_group(child)
    return child.wait()


def _has_died(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


async def _dead(pid: int) -> None:
    """Wait until a child has died, without freeing its pid."""
    while not _has_died(pid):
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # no descriptor is left for the moment
            await anyio.sleep(_POLL_INTERVAL_S)
            continue
        try:
            await anyio.wait_readable(handle)
        finally:
            os.close(handle)


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the child's process group. Does nothing once the child was waited for: its pid may belong to another process."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def send_signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals the child alone. Unlike `Popen.send_signal` this never waits for it, which would free its pid too early."""
    if child.returncode is None:
        os.kill(child.pid, number)
