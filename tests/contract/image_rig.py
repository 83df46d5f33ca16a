"""A store with one small image, and directories for sandboxes on it."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.lab.root_filesystem import make_root
from sandboxes.from_environment import VARIABLE
from sandboxes.images.store import ImageStore
from sandboxes.reap import default_root, reap


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-images-"))
    directory.chmod(0o755)
    ImageStore(directory / "store").add(make_root(directory / "root"), name="small")
    yield directory / "store"
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, images: Path) -> Iterator[Path]:
    """The directory for sandboxes of this process and of the owners it kills, who find the images too."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    directory.chmod(0o711)
    (directory / "settings.json").write_text(json.dumps({"images": {"directory": str(images)}}))
    monkeypatch.setenv(VARIABLE, str(directory / "settings.json"))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    reap(default_root())
    assert not list(directory.glob("*/*.json")), "a sandbox was left behind"
    shutil.rmtree(directory)
