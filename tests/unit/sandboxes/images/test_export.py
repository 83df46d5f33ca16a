"""An archive that `penstock images export` writes is whole, or not there."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.images import export
from sandboxes.images.export import write_archive
from sandboxes.images.store import Image, ImageStore
from tests.unit.sandboxes.images.archives import BASE, layer, member, oci


def test_an_export_that_fails_leaves_nothing_and_the_next_one_succeeds(
    tmp_path: Path,
) -> None:
    store = ImageStore(tmp_path / "store")
    image = store.add(oci(tmp_path / "oci", layer([*BASE, member("app/f", os.urandom(200_000))])))
    target = tmp_path / "out"
    target.mkdir()
    write_archive(image, target / "whole.tar")
    size = (target / "whole.tar").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (100_000, size - 1):  # in the layer, at the end of the archive
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                write_archive(image, target / "a.tar")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert os.listdir(target) == ["whole.tar"]
    with pytest.raises(FileExistsError):
        write_archive(image, target / "whole.tar")
    write_archive(image, target / "a.tar")
    assert ImageStore(tmp_path / "other").add(target / "a.tar").digest == image.digest
    assert sorted(os.listdir(target)) == ["a.tar", "whole.tar"]


KILLED = """
import os, signal, sys
from pathlib import Path
from sandboxes.images import export
from sandboxes.images.store import ImageStore
export.tarfile.open = lambda **_: os.kill(os.getpid(), signal.SIGKILL)
export.write_archive(ImageStore(Path(sys.argv[1])).find(sys.argv[2]), Path(sys.argv[3]))
"""


def test_what_a_killed_export_left_is_removed_by_the_next_and_a_living_one_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ImageStore(tmp_path / "store")
    image = store.add(oci(tmp_path / "oci", layer(BASE)))
    target = tmp_path / "out"
    target.mkdir()
    words = [sys.executable, "-c", KILLED, str(store.directory), image.digest, str(target / "a.tar")]
    assert subprocess.run(words).returncode == -signal.SIGKILL
    (left,) = os.listdir(target)
    assert left.startswith(".")
    written = export.write_directory

    def twice(image: Image, place: Path) -> None:
        """Export while an export goes on."""
        monkeypatch.setattr(export, "write_directory", written)
        written(image, place)
        write_archive(image, target / "b.tar")
        assert sorted(os.listdir(target)) == sorted([place.parent.name, "b.tar"])

    monkeypatch.setattr(export, "write_directory", twice)
    write_archive(image, target / "a.tar")
    assert sorted(os.listdir(target)) == ["a.tar", "b.tar"]
