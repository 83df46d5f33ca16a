"""The system calls that programs in a sandbox may not make: a filter for `bwrap --seccomp`, built here instruction by instruction.

Namespaces and missing capabilities refuse most of these already. The filter also holds where a kernel has a hole in one of them. It also
closes resources that namespaces do not cover: the host's keyrings, vsock (a virtual machine's line to its host), performance counters, io_uring,
input pushed into a terminal, namespaces within the sandbox, and inspection of processes of the same user.

A refused call fails with EPERM, or with ENOSYS where programs then fall back to an older call (`clone3`, io_uring, `close_range` that
unshares descriptors). Space cannot be
preallocated: that takes gigabytes in milliseconds, and the use of disks is measured from time to time. It fails with EOPNOTSUPP, as on file systems
that cannot do it, and glibc's `posix_fallocate` writes zeros then; musl's fails. Calls of another architecture (32-bit programs on a 64-bit
kernel) fail with ENOSYS: the same number means another call there. Classic BPF over
`struct seccomp_data`: number at 0, architecture at 4, the low half of argument n at 16 + 8n (little-endian machines only).
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import struct
from collections.abc import Mapping

# Name → (number on x86_64, number on aarch64); 0 if the call does not exist.
DENIED: Mapping[str, tuple[int, int]] = {
    # other processes' memory and descriptors
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # the kernel's own programs, counters, memory tricks
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    # keyrings are not namespaced
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # mounts, roots and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "lookup_dcookie": (212, 18), "vhangup": (153, 58),
    "nfsservctl": (180, 42), "iopl": (172, 0), "ioperm": (173, 0), "modify_ldt": (154, 0), "uselib": (134, 0),
}  # fmt: skip
ABSENT: Mapping[str, tuple[int, int]] = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (
        435,
        435,
    ),  # its flags are behind a pointer, which no filter can follow; libraries fall back to clone
}
CHECKED: Mapping[str, tuple[int, int]] = {
    "clone": (56, 220),
    "socket": (41, 198),
    "ioctl": (16, 29),
    "fallocate": (285, 47),
    "close_range": (436, 436),
}
"""Refused depending on their arguments: namespaces, descriptors of a thread alone, address families, input into a terminal, preallocated space."""
NEW_NAMESPACES = 0x7E02_0000
"""CLONE_NEW{NS, CGROUP, UTS, IPC, USER, PID, NET}."""
SHARED_FILES, THREAD = 0x400, 0x1_0000
"""CLONE_FILES, CLONE_THREAD. A thread shares the descriptors of its process: who measures what a program holds reads those of one thread."""
OWN_FILES = 2
"""CLOSE_RANGE_UNSHARE."""
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: all families that programs without a network need. Not vsock, packet, alg, bluetooth …"""
TERMINAL = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX: input pushed into a terminal."""
PREALLOCATING = (0x4030_5828, 0x4030_582A, 0x4030_5839)
"""FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE: `fallocate` by other names."""
FREEING = 0x0A
"""FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE: the modes of `fallocate` that only give space back."""

_ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_X32 = 0x4000_0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_EPERM, _ENOSYS, _EOPNOTSUPP = (_ERRNO | number for number in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP))


@functools.cache
def own_machine() -> str:
    """The architecture of this program, from its own ELF header. The kernel's answer (`uname`) depends on the personality that the starter set."""
    try:
        with open("/proc/self/exe", "rb") as program_file:
            header = program_file.read(20)
    except OSError:
        return platform.machine()
    known = {(2, 62): "x86_64", (2, 183): "aarch64"}  # (ELFCLASS64, EM_X86_64 and EM_AARCH64)
    return known.get((header[4], int.from_bytes(header[18:20], "little")), platform.machine())


def numbers(machine: str | None = None) -> dict[str, int]:
    """Number of every call named here, on this machine; empty on an architecture without a filter."""
    found = _ARCHITECTURES.get(machine or own_machine())
    if found is None:
        return {}
    return {
        name: pair[found[0]]
        for table in (DENIED, ABSENT, CHECKED)
        for name, pair in table.items()
        if pair[found[0]]
    }


@functools.cache
def program(machine: str | None = None) -> bytes | None:
    """The filter in bwrap's format, 8 bytes per instruction; None on an unknown architecture."""
    machine = machine or own_machine()
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]
    code = [_op(_LOAD, 4), _op(_EQUAL, architecture, yes=1), _op(_RETURN, _ENOSYS), _op(_LOAD, 0)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, no=1), _op(_RETURN, _ENOSYS)]
    for table, error_number in ((DENIED, _EPERM), (ABSENT, _ENOSYS)):
        call_numbers = sorted(pair[column] for pair in table.values() if pair[column])
        last = len(call_numbers) - 1
        code += [_op(_EQUAL, number, yes=last - i, no=i == last) for i, number in enumerate(call_numbers)]
        code.append(_op(_RETURN, error_number))
    clone, socket, ioctl, fallocate, close_range = (call[column] for call in CHECKED.values())
    code += [_op(_EQUAL, clone, no=6), _op(_LOAD, 16), _op(_ANY_BIT, NEW_NAMESPACES, yes=2)]
    code += [_op(_ANY_BIT, THREAD, no=2), _op(_ANY_BIT, SHARED_FILES, yes=1)]
    code += [_op(_RETURN, _EPERM), _op(_RETURN, _ALLOW)]
    code += [_op(_EQUAL, close_range, no=4), _op(_LOAD, 32), _op(_ANY_BIT, OWN_FILES, no=1)]
    code += [_op(_RETURN, _ENOSYS), _op(_RETURN, _ALLOW)]
    code += [_op(_EQUAL, socket, no=2 + len(FAMILIES) + 1), _op(_LOAD, 16)]
    code += [_op(_EQUAL, family, yes=len(FAMILIES) - i) for i, family in enumerate(FAMILIES)]
    code += [_op(_RETURN, _EPERM), _op(_RETURN, _ALLOW)]
    code += [_op(_EQUAL, fallocate, no=4), _op(_LOAD, 24), _op(_ANY_BIT, FREEING, no=1)]
    code += [_op(_RETURN, _ALLOW), _op(_RETURN, _EOPNOTSUPP)]
    refused = len(TERMINAL) + len(PREALLOCATING)
    code += [_op(_EQUAL, ioctl, no=1 + refused), _op(_LOAD, 24)]
    code += [_op(_EQUAL, request, yes=refused - i) for i, request in enumerate(TERMINAL)]
    code += [_op(_EQUAL, request, yes=len(PREALLOCATING) + 1 - i) for i, request in enumerate(PREALLOCATING)]
    code += [_op(_RETURN, _ALLOW), _op(_RETURN, _EPERM), _op(_RETURN, _EOPNOTSUPP)]
    return b"".join(code)


def descriptor(filter_: bytes) -> int:
    """A memory file with the filter, positioned at its beginning, for one read. The caller closes it."""
    fd = os.memfd_create("seccomp")
    with open(fd, "wb", closefd=False) as file:
        file.write(filter_)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many instructions a comparison skips."""
    return struct.pack("<HBBI", code, yes, no, value)
