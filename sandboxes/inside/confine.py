"""Between fork and exec: from a process of the platform to a program without rights."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import math
import os
import re
import resource
import signal
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxes import seccomp

_SUBREAPER, _CAPBSET_DROP, _NO_NEW_PRIVS, _SECCOMP, _DUMPABLE, _TIMER_SLACK = 36, 24, 38, 22, 4, 29
_USUAL_SLACK_NS = 50_000
_FILTER = 2
_CAPABILITIES = 64
_EVERY_NAMESPACE = (
    0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SYS_RESOURCE = 24
_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on, orphaned descendants become our children, regardless of their sessions."""
    _must(libc.prctl(_SUBREAPER, 1, 0, 0, 0))


def hide() -> None:
    """Hide memory and descriptors from every process with the same user until the next exec."""
    _must(libc.prctl(_DUMPABLE, 0, 0, 0, 0))


@contextlib.contextmanager
def looking_as(uid: int) -> Iterator[None]:
    """Inside the block, root without the right to trace sees in /proc what the processes of the user `uid` hold. Only for one thread."""
    libc.setfsgid(uid)
    libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(os.geteuid())
        libc.setfsgid(os.getegid())


def join(process: int) -> None:
    """Join all namespaces of the process that a pidfd names, including its user namespace. Only children become members of its pid namespace."""
    _must(libc.setns(process, _EVERY_NAMESPACE))


def become(uid: int) -> None:
    """Become a user without capabilities, permanently."""
    for capability in range(_CAPABILITIES):  # the kernel refuses the ones that it does not know
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _renounce()


def renounce() -> None:
    """Drop all capabilities permanently. The user stays the same."""
    for capability in range(_CAPABILITIES):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    _renounce()


def _renounce() -> None:
    header, no_capabilities = struct.pack("Ii", _VERSION, 0), struct.pack("6I", *[0] * 6)
    _must(libc.capset(header, no_capabilities))
    _must(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def filter_calls(code: bytes | None) -> None:
    """Install the filter of seccomp.py, if there is one for this architecture."""
    if code is None:
        return
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    _must(libc.prctl(_SECCOMP, _FILTER, program, 0, 0))


class Resource(enum.IntEnum):
    """Resource limits, by the names that engines have for them."""

    CPU = resource.RLIMIT_CPU
    FSIZE = resource.RLIMIT_FSIZE
    DATA = resource.RLIMIT_DATA
    STACK = resource.RLIMIT_STACK
    CORE = resource.RLIMIT_CORE
    RSS = resource.RLIMIT_RSS
    NPROC = resource.RLIMIT_NPROC
    NOFILE = resource.RLIMIT_NOFILE
    MEMLOCK = resource.RLIMIT_MEMLOCK
    AS = resource.RLIMIT_AS
    LOCKS = 10
    SIGPENDING = resource.RLIMIT_SIGPENDING
    MSGQUEUE = resource.RLIMIT_MSGQUEUE
    NICE = resource.RLIMIT_NICE
    RTPRIO = resource.RLIMIT_RTPRIO
    RTTIME = resource.RLIMIT_RTTIME


NO_LIMIT = resource.RLIM_INFINITY
FIXED_LIMITS: Mapping[Resource, tuple[int, int]] = {
    Resource.CORE: (0, 0),
    Resource.NOFILE: (4096, 4096),
    Resource.STACK: (8 << 20, NO_LIMIT),
    Resource.MEMLOCK: (8 << 20, 8 << 20),
    Resource.AS: (NO_LIMIT, NO_LIMIT),
    Resource.RSS: (NO_LIMIT, NO_LIMIT),
    Resource.LOCKS: (NO_LIMIT, NO_LIMIT),
    Resource.SIGPENDING: (1024, 1024),
    Resource.MSGQUEUE: (819_200, 819_200),
    Resource.NICE: (0, 0),
    Resource.RTPRIO: (0, 0),
    Resource.RTTIME: (NO_LIMIT, NO_LIMIT),
}
"""(soft, hard) of every program on every host. `resource_limits` adds those that a sandbox's own limits set."""


def resource_limits(limits: Mapping[str, Any], *, alone: bool) -> dict[Resource, tuple[int, int]]:
    """(soft, hard) of a program's resource limits. `alone` (no control group): with memory and the user's number of processes."""
    of_sandbox = {
        Resource.FSIZE: limits["disk_mb"] << 20,
        Resource.CPU: math.ceil(limits["cpu_s"]) + 1,
        Resource.DATA: limits["memory_mb"] << 20 if alone else NO_LIMIT,
        Resource.NPROC: limits["processes"] if alone else NO_LIMIT,
    }
    return {**FIXED_LIMITS, **{number: (most, most) for number, most in of_sandbox.items()}}


def limit(limits: Mapping[str, Any], *, alone: bool = True) -> None:
    """Set every limit that the kernel enforces per process."""
    set_limits(resource_limits(limits, alone=alone))


def set_limits(wanted: Mapping[Resource, tuple[int, int]]) -> None:
    """Set these limits, or as much as our hard limits allow to a process that may not raise them."""
    for number, pair in wanted.items():
        try:
            resource.setrlimit(number, pair)
        except (ValueError, PermissionError):
            resource.setrlimit(number, allowed(pair, resource.getrlimit(number)[1]))


def allowed(pair: tuple[int, int], hard: int) -> tuple[int, int]:
    """As much of a (soft, hard) limit as a process with the hard limit `hard` may set without privilege."""
    bounded = [hard if most == NO_LIMIT or most > hard else most for most in pair]
    return pair if hard == NO_LIMIT else (bounded[0], bounded[1])


def may_raise() -> bool:
    """Whether this process may raise hard limits: CAP_SYS_RESOURCE."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> _SYS_RESOURCE & 1)


def rise() -> None:
    """Undo what only a privileged process may: hard limits, niceness and scheduling class that we were started with. Others
    keep them, and `penstock doctor --sandbox` names them."""
    of_sandboxes = (Resource.FSIZE, Resource.CPU, Resource.DATA, Resource.NPROC)
    set_limits({**FIXED_LIMITS, **dict.fromkeys(of_sandboxes, (NO_LIMIT, NO_LIMIT))})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def settle() -> None:
    """The state in which every program starts, on every host: umask 022, no signal ignored or blocked, no odd execution domain, timers as precise
    as the kernel's usual ones."""
    os.umask(0o022)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):  # one that the C library keeps for itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    libc.personality(0)
    libc.prctl(_TIMER_SLACK, _USUAL_SLACK_NS, 0, 0, 0)


def execute(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, uid: int, limits: Mapping[str, Any], report_fd: int
) -> None:
    """Become the program, or write the reason for a failure to `report_fd` (a pipe that closes with exec). Never returns."""
    code = 126
    try:
        settle()
        limit(limits)
        become(uid)
        filter_calls(seccomp.program())
        code, reason = replace(argv, env, cwd)
        os.write(report_fd, f"{code} {reason}".encode())
    except (OSError, ValueError) as error:
        os.write(report_fd, f"{code} {getattr(error, 'strerror', None) or error}".encode())
    finally:
        os._exit(code)


def replace(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[int, str]:
    """Replace this process by the program. Returns only if it cannot be run: the shell's exit code, and the reason."""
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(env))
    except FileNotFoundError as error:
        return (127 if error.filename != cwd else 126), str(error.strerror)
    except (OSError, ValueError) as error:
        return 126, str(getattr(error, "strerror", None) or error)


def _must(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
