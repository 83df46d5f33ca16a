"""Locks between processes on one machine: an advisory lock on a file, freed by the kernel when its holder dies."""

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio


def try_lock(path: Path) -> int | None:
    """Locks a file without waiting. Returns a descriptor (close it to release the lock), or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@asynccontextmanager
async def exclusive(path: Path) -> AsyncIterator[None]:
    """Waits until this process alone holds the lock `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while (descriptor := try_lock(path)) is None:
        await anyio.sleep(0.02)
    try:
        yield
    finally:
        os.close(descriptor)
