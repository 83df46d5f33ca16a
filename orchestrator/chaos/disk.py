"""A small disk of its own for the checkpoints, which can be filled: a tmpfs, which only root can mount.

Where it cannot be mounted the fault is left out, and the report says so.
"""

import errno
import os
import subprocess
import time
from pathlib import Path

SIZE_MB = 96
BALLAST = ".ballast"
BUSY_S = 5.0
_BLOCK = bytes(1 << 20)


def mount(place: Path) -> bool:
    """Put the small disk at `place`, unless it is there. False where this user or this machine cannot."""
    place.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(place):
        return True
    if os.geteuid() != 0 or any(place.iterdir()):
        return False
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0755", "penstock-chaos", str(place)]
    return subprocess.run(argv, capture_output=True).returncode == 0


def unmount(place: Path) -> None:
    """Take it away, with what is on it. Nothing happens where there is none. The heir of a killed worker holds its log for a moment longer."""
    patience = time.monotonic() + BUSY_S
    while os.path.ismount(place):
        ended = subprocess.run(["umount", str(place)], capture_output=True)
        if ended.returncode == 0 or time.monotonic() > patience:
            return
        time.sleep(0.05)


def fill(place: Path) -> None:
    """Nobody can write another byte below `place`, until somebody gives up what it has there: then this can be called again."""
    # Unbuffered: what a buffer could not write it tries to write again, and fails, when the file is closed.
    with (place / BALLAST).open("ab", buffering=0) as ballast:
        for block in (_BLOCK, bytes(512)):
            try:
                while True:
                    ballast.write(block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def empty(place: Path) -> None:
    """There is room again."""
    (place / BALLAST).unlink(missing_ok=True)
