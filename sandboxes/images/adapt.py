"""Makes an unpacked file system fit a sandbox, and refuses one that cannot.

The places of a sandbox (`/tmp`, `/tests`, …) never lie in the image: view.py makes each of them, with its parents, as a real directory of the
sandbox. So an image has no say over them, whatever links it holds there. Two things are written into the image, once: `/etc/passwd` and its like
get the user of programs, and the work directory exists as real directories.
"""

from __future__ import annotations

import io
import posixpath
import struct
from collections.abc import Mapping

from sandboxes.base import HOME, PLACED, WORK, ImageRefused
from sandboxes.etc import ETC_FILES
from sandboxes.images.architecture import MACHINES, machine
from sandboxes.images.unpack import Unpacker
from sandboxes.moves import TAKES, moved
from sandboxes.paths import is_within

_AGENT = {"passwd": b"agent:x:1000:1000::/home/agent:/bin/sh\n", "group": b"agent:x:1000:\n"}
_MAX_BYTES = 1 << 20
_HOME = f":{HOME}:".encode()
_OWN = (HOME, *PLACED, "/logs", "/tmp", "/proc", "/dev", "/sys", "/run")
"""Places of a sandbox that the work directory can neither be nor contain nor lie in, except those that give way (moves.py)."""
_SYSTEM = (
    "/",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/local",
    "/home",
)
"""Places that programs need where they are: the work directory may lie in them, but cannot be one."""
_SHELLS = ("bin/sh", "usr/bin/sh", "bin/dash", "usr/bin/dash", "bin/bash", "usr/bin/bash", "bin/busybox")


def work_directory(configured: str) -> str:
    """The work directory of an image whose configuration says WORKDIR `configured`; `/app` for none or `/`. ImageRefused for a place that the
    sandbox needs itself."""
    work = posixpath.normpath(configured or "/")
    if not work.startswith("/"):
        raise ImageRefused(f"WORKDIR {configured} is not an absolute path")
    work = "/" + work.lstrip("/")
    if work == "/":
        return WORK
    taken = work in _SYSTEM or any(is_within(work, own) or is_within(own, work) for own in _OWN)
    if taken and work not in TAKES:
        raise ImageRefused(
            f"WORKDIR {work} is taken by the sandbox itself: choose {WORK}, or another directory of its own"
        )
    return work


def adapt(target: Unpacker, work: str) -> None:
    """Write what every sandbox needs into an unpacked file system, and check it. ImageRefused if it has no shell, is made for other machines, or its
    work directory is reached through a link."""
    home = moved(HOME, work)
    for name, text in ETC_FILES.items():
        target.file(("etc", name), 0o644, *_sized(_merged(target, name, text, home)))
    parts = tuple(work.strip("/").split("/"))
    for end in range(1, len(parts) + 1):
        part = parts[:end]
        if not target.is_directory(part):
            if target.exists(part):
                raise ImageRefused(
                    f"WORKDIR {work}: /{'/'.join(part)} is not a directory in the image but a link or a file"
                )
            target.directory(part, 0o755)
    _check_programs(target)


def _merged(target: Unpacker, name: str, text: str, home: str) -> bytes:
    """The image's own file with the user `agent`, whose home is `home`; or our file, where the image's cannot be used."""
    own = target.read(("etc", name), _MAX_BYTES)
    if name == "nsswitch.conf" and own:  # a build upon this image resolves names by it
        return own
    if name not in _AGENT or not own or len(own) == _MAX_BYTES or b"\0" in own:
        return text.replace(f":{HOME}:", f":{home}:").encode()
    kept: list[bytes] = []
    same: list[bytes] = []
    for line in own.splitlines():
        fields = line.split(b":")
        if fields[0] != b"agent" and len(fields) > 2:
            (same if fields[2] == b"1000" else kept).append(line)
    # The first one of a number is what it is called; others are found by their names.
    return b"\n".join([*kept, _AGENT[name].rstrip().replace(_HOME, f":{home}:".encode()), *same]) + b"\n"


def _check_programs(target: Unpacker) -> None:
    found = [head for path in _SHELLS if (head := target.read(tuple(path.split("/")), 20))]
    if not found:
        raise ImageRefused("the image has no shell: programs need at least /bin/sh")
    for head in found:
        if head[:4] == b"\x7fELF" and len(head) == 20:
            (number,) = struct.unpack("<H" if head[5] == 1 else ">H", head[18:20])
            if number != MACHINES.get(machine(), number):
                names: Mapping[int, str] = {number: name for name, number in MACHINES.items()}
                raise ImageRefused(
                    f"the image is for {names.get(number, f'ELF machine {number}')} and this machine is {machine()}: choose an image for {machine()}"
                )


def _sized(data: bytes) -> tuple[int, io.BytesIO]:
    return len(data), io.BytesIO(data)
