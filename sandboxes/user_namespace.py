"""User namespaces, made by root for one sandbox. Runs in a child of the joiner (join.py).

A namespace has no process: it exists as long as a descriptor of it is open.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from sandboxes.inside.confine import libc

_NEWUSER = 0x1000_0000
_LIMIT_FILE = "/proc/sys/user/max_user_namespaces"


def made(maps: Mapping[str, str], *, nested: bool = True) -> int:
    """A user namespace with these `uid_map` and `gid_map`; without `nested`, further ones cannot be made inside. Returns its descriptor. OSError if
    the kernel refuses."""
    ready, at_ready = os.pipe()
    mapped, at_mapped = os.pipe()
    pid = os.fork()
    if pid == 0:
        _inside(at_ready, mapped, at_mapped, nested=nested)
    os.close(at_ready)
    os.close(mapped)
    fd = -1
    try:
        if not os.read(ready, 1):
            raise OSError(ctypes.get_errno(), "no user namespace can be made")
        for name, text in maps.items():
            Path(f"/proc/{pid}/{name}").write_text(text)
        fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        os.write(at_mapped, b".")
    finally:
        os.close(at_mapped)
        os.close(ready)
        status = os.waitpid(pid, 0)[1]
        if status and fd >= 0:
            os.close(fd)
    if status:
        raise OSError(f"{_LIMIT_FILE} cannot be written in a new user namespace")
    return fd


def closed(maps: Mapping[str, str]) -> int:
    """As `made`, closed to further user namespaces."""
    return made(maps, nested=False)


def _inside(at_ready: int, mapped: int, at_mapped: int, *, nested: bool) -> None:
    code = 1
    try:
        os.close(at_mapped)
        if libc.unshare(_NEWUSER) == 0:
            os.write(at_ready, b".")
            if os.read(mapped, 1):
                if not nested:
                    Path(_LIMIT_FILE).write_text("0")
                code = 0
    finally:
        os._exit(code)
