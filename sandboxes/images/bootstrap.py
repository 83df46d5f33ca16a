"""Base images from a distribution's package mirror alone, by debootstrap in a cage: `debian:12`, `ubuntu:24.04`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from sandboxes.base import ImageRefused, SandboxError
from sandboxes.images import caged, rootfs
from sandboxes.images.caged import Caged, Log, own
from sandboxes.images.oci import Description
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import Image, ImageStore, check_name
from sandboxes.images.unpack import Unpacker

SUITES: Final = {
    "debian": {"11": "bullseye", "12": "bookworm", "13": "trixie"},
    "ubuntu": {"20.04": "focal", "22.04": "jammy", "24.04": "noble"},
}
MIRRORS: Final = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}
_MIRROR = re.compile(r"[a-z]+:[!-~]+")
"""The line of apt's sources begins with it, and has no quoting for a blank."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.:~_-]*")
# No device can be made in a user namespace: those of the cage are shown in their place, and the image keeps none.
_MKNOD: Final = """#!/bin/sh
[ "$1" = -m ] && shift 2
: >"$1"
case "$1 $3:$4" in
  *test-dev-null*) exit 0 ;;
  *' 1:3') device=null ;;
  *' 1:5') device=zero ;;
  *' 1:7') device=full ;;
  *' 1:8') device=random ;;
  *' 1:9') device=urandom ;;
  *' 5:0') device=tty ;;
  *) exit 0 ;;
esac
exec mount --bind "/dev/$device" "$1"
"""
# An ordinary user reads only what belongs to the root of the cage. Its copy of a file system has no other owners anyway (rootfs.py).
_SCRIPT: Final = """
debootstrap --variant=minbase ${INCLUDE:+"--include=$INCLUDE"} "$SUITE" /out/root "$MIRROR" 2>&1
status=$?
[ -z "$OWN" ] || find /out/root -xdev -exec chown -h 0:0 {} + 2>/dev/null
exit $status
"""


def suite_of(name: str) -> tuple[str, str]:
    """(distribution, its code name) of a name such as `debian:12`, `debian:bookworm-slim` or `ubuntu:24.04`. ImageRefused for another."""
    distribution, _, tag = name.partition(":")
    tag = tag.removesuffix("-slim")
    suites = SUITES.get(distribution, {})
    suite = suites.get(tag, tag if tag in suites.values() else "")
    if not suite:
        known = ", ".join(f"{each}:{number}" for each, numbers in SUITES.items() for number in numbers)
        raise ImageRefused(f"{name} cannot be bootstrapped: debootstrap makes {known}")
    return distribution, suite


def _programs(place: Path) -> None:
    """The directory of programs that stand before the system's."""
    place.mkdir()
    (place / "mknod").write_text(_MKNOD)
    for path in (place, place / "mknod"):
        path.chmod(0o755)


def _check_words(include: Sequence[str], mirror: str, example: str) -> None:
    """ImageRefused for a package or a mirror that debootstrap would read as something else."""
    if wrong := [word for word in include if not _WORD.fullmatch(word)]:
        raise ImageRefused(f"{wrong[0]!r} cannot be the name of a package")
    if mirror and not _MIRROR.fullmatch(mirror):
        raise ImageRefused(f"{mirror!r} is not the URL of a mirror: write it as apt reads it, {example}")


async def bootstrap(
    store: ImageStore,
    settings: ImageSettings,
    base: str,
    *,
    name: str = "",
    include: Sequence[str] = (),
    mirror: str = "",
    log: Log | None = None,
) -> Image:
    """Make the image `base`, with the packages `include`, and let `name` (or `base`) stand for it. ImageRefused, one sentence, if that fails."""
    distribution, suite = suite_of(base)
    check_name(name or base)
    _check_words(include, mirror, MIRRORS[distribution])
    if problems := caged.missing("debootstrap"):
        raise SandboxError(f"no image can be bootstrapped on this machine: {' '.join(problems)}")
    with store.place() as place:
        caged.make_etc(place / "etc")
        _programs(place / "bin")
        out = own(place / "out")
        environment = {
            "PATH": "/penstock-bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DPKG_FORCE": "unsafe-io",
            "SUITE": suite,
            "MIRROR": mirror or MIRRORS[distribution],
            "INCLUDE": ",".join(include),
            "OWN": "" if os.geteuid() == 0 else "yes",
        }
        task = Caged(
            argv=("sh", "-c", _SCRIPT),
            what=f"bootstrapping {base} from {environment['MIRROR']}",
            binds=[
                (place / "etc", "/etc", True),
                (place / "bin", "/penstock-bin", True),
                (out, "/out", False),
            ],
            env=environment,
            time_s=settings.build_s,
            disk_mb=settings.build_mb,
            memory_mb=settings.build_memory_mb,
            grows=out,
            opened=settings.build_networks,
        )
        try:
            await caged.run(task, log)

            def unpack(target: Unpacker) -> Description:
                rootfs.copy(out / "root", target)
                for leftover in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
                    parts = tuple(leftover.split("/"))
                    target.empty(parts, lambda _: False)
                return Description()

            source = f"debootstrap {suite} {environment['MIRROR']}"
            return await anyio.to_thread.run_sync(
                partial(store.write, unpack, source=source, name=name or base)
            )
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):  # the store tries again
                await anyio.to_thread.run_sync(caged.remove, out)
