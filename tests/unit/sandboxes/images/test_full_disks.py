"""A full disk while images are stored or built: a failure of the platform, never of the task."""

import errno
from pathlib import Path

import pytest

from sandboxes.base import ImageRefused, MachineFault, SandboxError, SandboxFull
from sandboxes.disk_full import storing
from sandboxes.images.build import Builder
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), SandboxFull, "free space there"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), SandboxFull, "sandbox.images.directory"),
        (OSError(errno.EIO, "Input/output error"), MachineFault, "Input/output error"),
        (OSError(errno.EACCES, "Permission denied"), SandboxError, "Permission denied"),
        (ImageRefused("no"), ImageRefused, "no"),
    ],
    ids=str,
)
def test_an_error_of_the_disk_is_one_of_the_sandboxes(
    error: Exception, kind: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=says) as raised, storing(tmp_path):
        raise error
    assert type(raised.value) is kind


async def test_a_builder_whose_directory_cannot_be_used_says_so_in_one_sentence(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    (tmp_path / "images/builds/lock").mkdir(parents=True)
    with pytest.raises(SandboxError, match=r"cannot store an image in .*images: .*lock"):
        await Builder(store, ImageSettings(directory=str(tmp_path / "images"))).clear()
