"""Whether a program under test may have the standard input that the wrapper got: not if its judge reads from it, too.

`while read -r input want; do … done < cases` passes the rest of its cases on to every command in the loop. A program that got them would read the
expected values, and its judge would miss the cases that it took.
"""

from __future__ import annotations

import os
import stat

_STARTERS = frozenset({"timeout", "time", "flock", "strace", "ltrace", "unshare", "xvfb-run"})
"""They start a command, wait for it, and read nothing of its input."""
_SHELLS = frozenset({"bash", "rbash", "sh", "dash", "ash", "zsh", "ksh", "ksh93", "mksh"})


def is_given() -> bool:
    """Whether standard input was given to this command: by a redirection or a pipe of its own, or of a function or group around it that has read
    nothing of it. A file has not been read as long as it is at its start; a pipe, as long as the shell that has it has read nothing at all.

    Only the processes that started this one, and theirs, are looked at: an input comes from them, and programs that run at the same time may have
    opened the same file themselves.
    """
    own = os.fstat(0)
    if stat.S_ISCHR(own.st_mode):
        return True  # /dev/null, a terminal
    pid = parent = os.getppid()
    try:
        while pid > 0:
            if _has(pid, own) and _may_read(pid, own):
                return False
            pid = _number(f"/proc/{pid}/status", "PPid:")
    except (OSError, ValueError, StopIteration):
        return pid != parent  # a judge that cannot be seen may read
    return parent > 0


def _has(pid: int, own: os.stat_result) -> bool:
    """Whether the standard input of a process is ours: the same pipe, or the same file at the same place."""
    if "0" not in os.listdir(f"/proc/{pid}/fd"):
        return False
    other = os.stat(f"/proc/{pid}/fd/0")
    if (other.st_dev, other.st_ino) != (own.st_dev, own.st_ino):
        return False
    return not stat.S_ISREG(own.st_mode) or _number(f"/proc/{pid}/fdinfo/0", "pos:") == _place()


def _may_read(pid: int, own: os.stat_result) -> bool:
    name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    if name not in _SHELLS:
        return name not in _STARTERS
    return _place() > 0 if stat.S_ISREG(own.st_mode) else _number(f"/proc/{pid}/io", "rchar:") > 0


def _place() -> int:
    return os.lseek(0, 0, os.SEEK_CUR)


def _number(path: str, name: str) -> int:
    """The number after a name in a file of /proc."""
    with open(path, encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))
