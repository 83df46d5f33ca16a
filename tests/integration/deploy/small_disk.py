"""A small disk that a test can fill: a tmpfs, which only root can mount."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.lab.chaos import disk

SIZE_MB = 8


@pytest.fixture
def directory() -> Iterator[Path]:
    """Unlike `tmp_path`, the users of sandboxes can pass through it, and a Unix socket's path fits."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def small_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """`SIZE_MB` large, or as large as the test's parameter. Every user may pass through it."""
    monkeypatch.setattr(disk, "SIZE_MB", getattr(request, "param", SIZE_MB))
    place = directory / "disk"
    if not disk.mount(place):
        pytest.skip("only root can mount a small disk")
    try:
        yield place
    finally:
        disk.unmount(place)
