"""A builder that is killed: nothing of its build lives on, and the next build removes what it left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ops.lab.root_filesystem import make_root
from sandboxes import procfs
from sandboxes.base import File
from sandboxes.conformance.registry import long_sleep, sleepers
from sandboxes.images.build import Builder
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from tests.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.tier("images"),
]
PROGRAM = """
import anyio, json, sys
from sandboxes.images.build import Builder
from sandboxes.images.settings import ImageSettings
from sandboxes.base import File
settings = ImageSettings(directory=sys.argv[1])
anyio.run(Builder(settings.store(), settings).built, {"Dockerfile": File(sys.argv[2].encode())})
"""


@pytest.fixture
def store() -> Iterator[ImageStore]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-killed-"))
    directory.chmod(0o711)
    store = ImageStore(directory / "store")
    store.add(make_root(directory / "root", python=False), name="base:1")
    yield store
    shutil.rmtree(directory)


def images(store: ImageStore) -> list[str]:
    """The images and containers in buildah's storage."""
    graph = store.directory / "builds/storage/graph"
    files = [graph / "overlay-images/images.json", graph / "overlay-containers/containers.json"]
    return sorted(
        each["id"] for file in files if file.exists() for each in json.loads(file.read_text() or "[]")
    )


async def test_a_killed_builder_leaves_no_process_and_the_next_build_removes_the_rest(
    store: ImageStore,
) -> None:
    settings = ImageSettings(directory=str(store.directory))
    await Builder(store, settings).built({"Dockerfile": File(b"FROM base:1\nRUN echo before")})
    before = images(store)
    seconds = long_sleep()
    text = f"FROM base:1\nRUN echo left >/left\nRUN sleep {seconds}"
    command = [sys.executable, "-c", PROGRAM, str(store.directory), text]
    async with await anyio.open_process(
        command, stdin=None, stdout=subprocess.DEVNULL, stderr=None
    ) as builder:
        await eventually(lambda: sleepers(seconds), within_s=120.0)
        caged_by = [pid for pid in procfs.tree(builder.pid) if pid != builder.pid]
        os.kill(builder.pid, signal.SIGKILL)
    await eventually(lambda: not sleepers(seconds))
    await eventually(lambda: not children(caged_by))
    await eventually(lambda: str(store.directory) not in mounts())
    left = set(images(store)) - set(before)
    assert left
    await Builder(store, settings).built({"Dockerfile": File(b"FROM base:1\nRUN echo after")})
    assert not left & set(images(store))
    assert os.listdir(store.directory / "unfinished") == []


def children(pids: list[int]) -> list[int]:
    """Those that still live."""
    return [pid for pid in pids if not procfs.ended(pid)]


def mounts() -> str:
    """The mounts of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found.append(file.read_text())
        except OSError:
            continue
    return "".join(found)
