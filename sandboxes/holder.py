"""Process 1 of a sandbox by bubblewrap: a program of less than 300 bytes without libraries, which this module writes.

It hides its memory and descriptors from every process inside (`PR_SET_DUMPABLE`), ignores SIGCHLD so that the kernel collects orphans,
writes one byte to its output, and reads its input to the end. An image has neither a shell nor a loader for certain, so it needs none.

The instructions are those of `objdump --disassemble`; 1, the handler SIG_IGN in a kernel's `sigaction`, is also the byte that it writes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import Final

from sandboxes import seccomp

INSIDE: Final = "/run/penstock-init"
"""Where it lies inside, executable and unreadable."""
_X86_64 = """
b8 9d 00 00 00          mov    eax, 157 (prctl)
bf 04 00 00 00          mov    edi, 4 (PR_SET_DUMPABLE)
31 f6                   xor    esi, esi
31 d2                   xor    edx, edx
45 31 d2                xor    r10d, r10d
45 31 c0                xor    r8d, r8d
0f 05                   syscall
85 c0                   test   eax, eax
75 4b                   jne    end
b8 0d 00 00 00          mov    eax, 13 (rt_sigaction)
bf 11 00 00 00          mov    edi, 17 (SIGCHLD)
48 8d 35 45 00 00 00    lea    rsi, [data]
31 d2                   xor    edx, edx
41 ba 08 00 00 00       mov    r10d, 8
0f 05                   syscall
85 c0                   test   eax, eax
75 2c                   jne    end
b8 01 00 00 00          mov    eax, 1 (write)
bf 01 00 00 00          mov    edi, 1
48 8d 35 26 00 00 00    lea    rsi, [data]
ba 01 00 00 00          mov    edx, 1
0f 05                   syscall
31 c0                   wait: xor eax, eax (read)
31 ff                   xor    edi, edi
48 8d 74 24 f8          lea    rsi, [rsp - 8]
ba 01 00 00 00          mov    edx, 1
0f 05                   syscall
85 c0                   test   eax, eax
7f ec                   jg     wait
b8 e7 00 00 00          end: mov eax, 231 (exit_group)
31 ff                   xor    edi, edi
0f 05                   syscall
66 90                   nop
01 00 00 00 00 00 00 00 data: SIG_IGN, no flags, no restorer, no mask
"""
_AARCH64 = """
e8 14 80 d2             mov    x8, 167 (prctl)
80 00 80 d2             mov    x0, 4 (PR_SET_DUMPABLE)
01 00 80 d2             mov    x1, 0
02 00 80 d2             mov    x2, 0
03 00 80 d2             mov    x3, 0
04 00 80 d2             mov    x4, 0
01 00 00 d4             svc    0
80 02 00 b5             cbnz   x0, end
c8 10 80 d2             mov    x8, 134 (rt_sigaction)
20 02 80 d2             mov    x0, 17 (SIGCHLD)
81 02 00 10             adr    x1, data
02 00 80 d2             mov    x2, 0
03 01 80 d2             mov    x3, 8
01 00 00 d4             svc    0
a0 01 00 b5             cbnz   x0, end
08 08 80 d2             mov    x8, 64 (write)
20 00 80 d2             mov    x0, 1
a1 01 00 10             adr    x1, data
22 00 80 d2             mov    x2, 1
01 00 00 d4             svc    0
e8 07 80 d2             wait: mov x8, 63 (read)
00 00 80 d2             mov    x0, 0
e1 43 00 d1             sub    x1, sp, 16
22 00 80 d2             mov    x2, 1
01 00 00 d4             svc    0
1f 00 00 f1             cmp    x0, 0
4c ff ff 54             b.gt   wait
c8 0b 80 d2             end: mov x8, 94 (exit_group)
00 00 80 d2             mov    x0, 0
01 00 00 d4             svc    0
01 00 00 00 00 00 00 00 data: SIG_IGN, no flags, no restorer, no mask
"""
_CODE: Final[Mapping[str, tuple[int, str]]] = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
"""(the machine's number in ELF, the code): the architectures that have a filter of system calls."""
_NO_FLAGS, _COLUMNS = bytes(24), 24
_BASE, _HEADERS, _PAGE = 0x40_0000, 64 + 56, 0x1_0000


def program(machine: str | None = None) -> bytes:
    """The ELF file: one segment, which is read and executed. KeyError for another architecture, for which seccomp.py has no filter either."""
    number, listing = _CODE[machine or seccomp.own_machine()]
    code = b"".join(bytes.fromhex(line[:_COLUMNS]) for line in listing.splitlines() if line) + _NO_FLAGS
    size = _HEADERS + len(code)
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, _PAGE)
    return identity + header + segment + code


def descriptor() -> int:
    """A memory file with the program, positioned at its beginning, for one read. The caller closes it."""
    fd = os.memfd_create("holder")
    with open(fd, "wb", closefd=False) as file:
        file.write(program())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def options(fd: int) -> list[str]:
    """Bubblewrap's options that place it inside, from a `descriptor`."""
    return ["--perms", "0111", "--ro-bind-data", str(fd), INSIDE]
