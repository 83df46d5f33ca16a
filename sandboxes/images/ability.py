"""The abilities of this machine with images, found by trying: for `penstock doctor`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sandboxes import join, tree
from sandboxes.images import caged
from sandboxes.images.mounted import Layering
from sandboxes.images.sandbox import Layerings
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import Image, free_bytes


def abilities(settings: ImageSettings) -> tuple[tuple[str, str], ...]:
    """(item, finding) of images with these settings: how a sandbox gets its writable layer, and whether images can be built and bootstrapped."""
    if not settings.directory:
        return (("images", "off: sandbox.images.directory is empty"),)
    kind, refused = _layering(Path(settings.directory))
    builds, bootstraps = caged.missing("buildah"), caged.missing("debootstrap")
    return (
        ("directory", f"{settings.directory}, {free_bytes(Path(settings.directory)) >> 20:,} MB free"),
        ("layer of a sandbox", kind + "".join(f" ({other}: {why})" for other, why in refused.items())),
        ("images build", " ".join(builds) or "possible"),
        ("images bootstrap", " ".join(bootstraps) or "possible"),
    )


def _layering(directory: Path) -> tuple[str, dict[Layering, str]]:
    """The way in which a layer is made here, and why the better ones are not."""
    while not directory.exists():
        directory = directory.parent
    join.begin()
    trials = Layerings()
    place = Path(
        tempfile.mkdtemp(prefix="penstock-trial-", dir=directory if os.access(directory, os.W_OK) else None)
    )
    try:
        place.chmod(0o755)
        (place / "root" / "app").mkdir(parents=True)
        (place / "box" / "files" / "app").mkdir(parents=True)
        image = Image(digest="0" * 64, root=place / "root", work="/app")
        owner = (caged.FIRST_USER, caged.FIRST_USER) if os.geteuid() == 0 else None
        trials.open(image, place / "box", owner).close()
        return str(trials.chosen), dict(trials.refused)
    finally:
        tree.remove(place)
