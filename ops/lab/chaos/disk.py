"""A small separate disk for the checkpoints, which can be filled: a tmpfs, which only root can mount.

If it cannot be mounted, the fault is left out and the report states that.
"""

import errno
import os
import subprocess
import time
from pathlib import Path

SIZE_MB = 96
SOURCE = "penstock-chaos"
BALLAST = ".ballast"
BUSY_S = 60.0
_BLOCK = bytes(1 << 20)


def mount(place: Path, *, source: str = SOURCE) -> bool:
    """Mount the small disk at `place`, unless it is mounted already. False if this user or this machine cannot. `source`: its name in the table
    of mounts."""
    place.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(place):
        return True
    if os.geteuid() != 0 or any(place.iterdir()):
        return False
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0755", source, str(place)]
    return subprocess.run(argv, capture_output=True).returncode == 0


def unmount(place: Path) -> None:
    """Unmount it; its content is lost. Does nothing if it is not mounted. A killed worker's cleanup daemon holds its log open a moment longer."""
    patience = time.monotonic() + BUSY_S
    while os.path.ismount(place):
        ended = subprocess.run(["umount", str(place)], capture_output=True)
        if ended.returncode == 0 or time.monotonic() > patience:
            return
        time.sleep(0.05)


def fill(place: Path) -> None:
    """Fill the disk: no process can write another byte below `place` until a file there is deleted. Then call this again."""
    # Unbuffered: a buffer would retry its unwritten bytes when the file is closed, and fail.
    with (place / BALLAST).open("ab", buffering=0) as ballast:
        for block in (_BLOCK, bytes(512)):
            try:
                while True:
                    ballast.write(block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def empty(place: Path) -> None:
    """Free the space again."""
    (place / BALLAST).unlink(missing_ok=True)
