"""A directory for sandboxes that unprivileged users can pass through (pytest's own is private to us)."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Also the default root of every provider made in this process or below it."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    directory.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    shutil.rmtree(directory)
