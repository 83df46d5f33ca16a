"""Between fork and exec: from a process of the platform to a program without rights."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxes import seccomp

_SUBREAPER, _CAPBSET_DROP, _NO_NEW_PRIVS, _SECCOMP, _DUMPABLE = 36, 24, 38, 22, 4
_FILTER = 2
_CAPABILITIES = 64
_EVERY_NAMESPACE = (
    0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on, orphaned descendants become our children, regardless of their sessions."""
    _must(libc.prctl(_SUBREAPER, 1, 0, 0, 0))


def hide() -> None:
    """Hide memory and descriptors from every process with the same user until the next exec."""
    _must(libc.prctl(_DUMPABLE, 0, 0, 0, 0))


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


def limit(limits: Mapping[str, Any], *, alone: bool = True) -> None:
    """Set the limits that the kernel enforces per process. With `alone` (no control group): also memory and the user's number of processes."""
    memory, disk, cpu = limits["memory_mb"] << 20, limits["disk_mb"] << 20, math.ceil(limits["cpu_s"]) + 1
    for resource_id, maximum in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_NOFILE, 4096),
        *(((resource.RLIMIT_DATA, memory), (resource.RLIMIT_NPROC, limits["processes"])) if alone else ()),
    ):
        hard = resource.getrlimit(resource_id)[1]
        maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(resource_id, (maximum, maximum))


def execute(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, uid: int, limits: Mapping[str, Any], report_fd: int
) -> None:
    """Become the program, or write the reason for a failure to `report_fd` (a pipe that closes with exec). Never returns."""
    code = 126
    try:
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
