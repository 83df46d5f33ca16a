"""Kernel confinement of the program: Landlock, a system call filter, limits per process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import struct
from collections.abc import Iterator

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE = 1 << 4 | 1 << 5  # directories, files
_MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_FILE_ONLY = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE | _IOCTL
_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_NEWEST = (1 << 16) - 1
READ = _EXECUTE | _READ_FILE | _READ_DIR
LIST = _READ_DIR
INPUT = _READ_FILE
WORK = READ | _WRITE | _REMOVE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
"""The directory in which the program starts. No link, pipe, socket or device can be created there, since the judge and the platform read and write
there next. Nothing can move to another directory either (`refer`): a link of the agent's, `a/b/x -> ../../y`, would leave the work directory from a
shallower place."""
OWN = READ | _WRITE | _REMOVE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM | _TRUNCATE
"""$HOME and $TMPDIR of the program: without `refer`, so that no directory with links in it moves from there into the work directory."""
SHARED = READ | _WRITE | _REMOVE | _MAKE_REG | _TRUNCATE
DEVICE = _READ_FILE | _WRITE | _TRUNCATE | _IOCTL
SCOPED_SIGNALS = 6
"""From this version of Landlock on, signals and abstract sockets cannot leave a confinement."""
_SCOPES = 0b11

_PDEATHSIG, _DUMPABLE, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 36, 38
_ALLOW, _EPERM, _ENOSPC, _ENOSYS, _EOPNOTSUPP = (
    0x7FFF_0000,
    0x0005_0001,
    0x0005_001C,
    0x0005_0026,
    0x0005_005F,
)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_X32 = 0x4000_0000
# Name → numbers on x86_64 and aarch64. They create memory that process statistics do not show.
ABSENT = {"memfd_create": (319, 279), "memfd_secret": (447, 447)}
# Landlock restricts no watches: they tell the names of the judge's files in any directory. The answer is that of a machine without free watches,
# on which some programs look from time to time instead and others end.
WATCHES = {"inotify_add_watch": (254, 27), "fanotify_init": (300, 262), "fanotify_mark": (301, 263)}
# Preallocated space fills a disk between two measurements of its use. Modes with one of these bits give space back. The same by `ioctl`:
# FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE.
FALLOCATE, FREEING = (285, 47), 0x0A
IOCTL, PREALLOCATING = (16, 29), (0x4030_5828, 0x4030_582A, 0x4030_5839)
# System V objects outlive their creators: refused if they cannot be distinguished from those of others.
SHARED_OBJECTS = {"shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186)}
# Before its third version, Landlock does not restrict truncation of a file by its path.
BY_PATH = {"truncate": (76, 45)}
TRUNCATES = 3
# Last number: the argument that names a process. Only the caller itself (0) is allowed.
# The judge has the same user, so the program could otherwise set the judge's limits and priority.
OF_ITSELF = {
    "prlimit64": (302, 261, 0),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
}
# The first argument selects a process or a group; from the last number on it selects all processes of a user, which is refused.
# The second argument names the process or group: only the caller's own (0) is allowed.
OF_OTHERS = {"setpriority": (141, 140, 2), "ioprio_set": (251, 30, 3)}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: int | bytes) -> int:
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(number, *wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def version() -> int:
    """Version of Landlock, from 1. OSError if the kernel has none."""
    return _call(_CREATE_RULESET, 0, 0, 1)


class Rules:
    """A Landlock ruleset. `places`: (path, rights); missing paths are skipped. The files stay open, so that the rules for /proc keep referring to
    the same entries."""

    def __init__(self, version: int, places: list[tuple[str, int]]) -> None:
        self.version = version
        handled = _HANDLED.get(version, _NEWEST)
        scopes = _SCOPES if version >= SCOPED_SIGNALS else 0
        size = 24 if version >= SCOPED_SIGNALS else 16 if version >= 4 else 8
        attributes = struct.pack("<QQQ", handled, 0, scopes)[:size]
        self.fd = _call(_CREATE_RULESET, attributes, len(attributes), 0)
        self.held: list[int] = []
        for path, rights in places:
            try:
                entry = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            self.held.append(entry)
            allowed = rights & handled & (_NEWEST if os.path.isdir(f"/proc/self/fd/{entry}") else _FILE_ONLY)
            try:
                _call(_ADD_RULE, self.fd, _PATH_BENEATH, struct.pack("<Qi", allowed, entry), 0)
            except OSError as error:
                # EBADFD: a file of the kernel's own, which Landlock does not restrict.
                if error.errno != errno.EBADFD:
                    raise

    def enter(self) -> None:
        """Apply the rules, permanently, to this process and its descendants."""
        _call(_RESTRICT_SELF, self.fd, 0)


def scope_signals() -> None:
    """From now on this process can signal only itself and its descendants. A descendant that is confined further cannot signal it."""
    attributes = struct.pack("<QQQ", 0, 0, _SCOPES)
    _call(_RESTRICT_SELF, _call(_CREATE_RULESET, attributes, len(attributes), 0), 0)


def adopt_orphans() -> None:
    """Orphaned descendants become children of this process."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)


def hide() -> None:
    """Other processes of the same user cannot read this process's environment or memory."""
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)


def gain_nothing() -> None:
    """No program that this process executes gains more rights."""
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)


def warned_of_death(signal_number: int) -> None:
    """Receive this signal when the parent dies."""
    _libc.prctl(_PDEATHSIG, signal_number, 0, 0, 0)


def limit(bounds: dict[int, float]) -> None:
    """`bounds`: resource → limit; never above the existing hard limit."""
    for kind, maximum in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = math.ceil(maximum)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def filter_calls(private: bool, version: int) -> None:
    """Refuse system calls that affect other processes, that create invisible memory, or that Landlock does not restrict (in this version). `private`:
    the sandbox shares no System V objects with others."""
    code = calls(os.uname().machine, private, version)
    if code is None:
        return
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    if _libc.prctl(_SECCOMP, 2, program, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def calls(machine: str, private: bool, version: int = TRUNCATES) -> bytes | None:
    """The filter, 8 bytes per instruction; None on an unknown architecture."""
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]
    code = [_op(_LOAD, 4), _op(_EQUAL, architecture, yes=1), _op(_RETURN, _ENOSYS), _op(_LOAD, 0)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, no=1), _op(_RETURN, _ENOSYS)]
    absent = [*ABSENT.values(), *([] if private else SHARED_OBJECTS.values())]
    for pair in [*absent, *(BY_PATH.values() if version < TRUNCATES else ())]:
        code += [_op(_EQUAL, pair[column], no=1), _op(_RETURN, _ENOSYS)]
    for watch in WATCHES.values():
        code += [_op(_EQUAL, watch[column], no=1), _op(_RETURN, _ENOSPC)]
    for *numbers, argument in OF_ITSELF.values():
        code += [_op(_EQUAL, numbers[column], no=4), _op(_LOAD, 16 + 8 * argument), _op(_EQUAL, 0, no=1)]
        code += [_op(_RETURN, _ALLOW), _op(_RETURN, _EPERM)]
    for *numbers, user in OF_OTHERS.values():
        code += [_op(_EQUAL, numbers[column], no=6), _op(_LOAD, 16), _op(_AT_LEAST, user, yes=3)]
        code += [_op(_LOAD, 24), _op(_EQUAL, 0, no=1), _op(_RETURN, _ALLOW), _op(_RETURN, _EPERM)]
    code += [_op(_EQUAL, FALLOCATE[column], no=4), _op(_LOAD, 24), _op(_ANY_BIT, FREEING, no=1)]
    code += [_op(_RETURN, _ALLOW), _op(_RETURN, _EOPNOTSUPP)]
    last = len(PREALLOCATING)
    code += [_op(_EQUAL, IOCTL[column], no=1 + last), _op(_LOAD, 24)]
    code += [_op(_EQUAL, request, yes=last - i) for i, request in enumerate(PREALLOCATING)]
    code += [_op(_RETURN, _ALLOW), _op(_RETURN, _EOPNOTSUPP)]
    return b"".join(code)


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def shared_objects() -> Iterator[tuple[str, int, int]]:
    """The System V objects of this user: (kind, id, bytes in memory)."""
    for kind, size in (("shm", 14), ("sem", 0), ("msg", 3)):
        with contextlib.suppress(OSError), open(f"/proc/sysvipc/{kind}", encoding="ascii") as table:
            for line in list(table)[1:]:
                columns = line.split()
                yield kind, int(columns[1]), int(columns[size]) if 0 < size < len(columns) else 0


def remove_shared(kind: str, number: int) -> None:
    """Remove a System V object; all processes lose it."""
    if kind == "shm":
        _libc.shmctl(number, 0, None)
    elif kind == "msg":
        _libc.msgctl(number, 0, None)
    else:
        _libc.semctl(number, 0, 0)
