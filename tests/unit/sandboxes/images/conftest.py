"""A store with an image made from this machine's programs, without Python, which every user may read."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.lab.root_filesystem import make_root
from sandboxes.images.store import ImageStore


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A directory with `root`, a root file system, that all users may enter."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-images-"))
    directory.chmod(0o755)
    root = make_root(directory / "root", python=False)
    work = root / "app"
    for path, text in {
        "kept": "1",
        "edited": "before",
        "gone": "1",
        "d/gone": "1",
        "d/sub/gone": "2",
        "tree/a": "1",
        "tree/b/c": "2",
        "again/x": "1",
    }.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    (work / "shut").mkdir(mode=0o700)
    (work / "link").symlink_to("kept")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def images(shared: Path) -> ImageStore:
    store = ImageStore(shared / "store")
    store.add(shared / "root", name="small")
    return store
