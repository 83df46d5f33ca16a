"""Between fork and exec: from root in a pod to a program without rights."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxes import seccomp

_SUBREAPER, _CAPBSET_DROP, _NO_NEW_PRIVS, _SECCOMP = 36, 24, 38, 22
_FILTER = 2
_CAPABILITIES = 64
_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on descendants that lose their parent become our children, whatever sessions they make."""
    _must(libc.prctl(_SUBREAPER, 1, 0, 0, 0))


def become(uid: int) -> None:
    """A user without capabilities, for good."""
    for capability in range(_CAPABILITIES):  # those that the kernel does not know are refused
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header, none = struct.pack("Ii", _VERSION, 0), struct.pack("6I", *[0] * 6)
    _must(libc.capset(header, none))
    _must(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def filter_calls(code: bytes | None) -> None:
    """The filter of seccomp.py, where there is one for this architecture."""
    if code is None:
        return
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    _must(libc.prctl(_SECCOMP, _FILTER, program, 0, 0))


def limit(limits: Mapping[str, Any]) -> None:
    """What the kernel enforces per process, and the number of processes of the user."""
    memory, disk, cpu = limits["memory_mb"] << 20, limits["disk_mb"] << 20, math.ceil(limits["cpu_s"]) + 1
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NOFILE, 4096),
        (resource.RLIMIT_NPROC, limits["processes"]),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def execute(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, uid: int, limits: Mapping[str, Any], told: int
) -> None:
    """Never returns: becomes the program, or writes why not to `told` (a pipe that closes with exec)."""
    code = 126
    try:
        limit(limits)
        become(uid)
        os.chdir(cwd)
        filter_calls(seccomp.program())
        os.execvpe(argv[0], list(argv), dict(env))
    except FileNotFoundError as error:
        code = 127 if error.filename != cwd else 126
        os.write(told, f"{code} {error.strerror}".encode())
    except (OSError, ValueError) as error:
        os.write(told, f"{code} {getattr(error, 'strerror', None) or error}".encode())
    finally:
        os._exit(code)


def _must(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
