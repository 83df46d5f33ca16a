"""The tier `containers` (./ops/test --tier containers) alone: a real podman, and the image that ops/setup_podman makes."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.container.settings import ContainerSettings
from sandboxes.reap import default_root, reap

collect_ignore_glob = [] if os.environ.get("PENSTOCK_TIER") == "containers" else ["test_*.py"]

SETTINGS = ContainerSettings(
    image="localhost/penstock-sandbox", global_options=("--cgroup-manager=cgroupfs", "--runtime=runc")
)


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The directory for sandboxes of this process and of the owners it kills; both use the same settings of podman."""
    assert shutil.which("podman"), "podman is not on the PATH: ops/setup_podman installs it"
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    directory.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    settings = {"image": SETTINGS.image, "global_options": list(SETTINGS.global_options)}
    (tmp_path / "settings.json").write_text(json.dumps({"container": settings}))
    monkeypatch.setenv("PENSTOCK_SANDBOX_SETTINGS", str(tmp_path / "settings.json"))
    yield directory
    reap(default_root())
    assert not list(directory.glob("*/*.json")), "a sandbox was left behind"
    shutil.rmtree(directory)
