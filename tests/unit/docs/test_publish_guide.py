"""The snippet of the guide that publishes a large task sends every blob within the limit that the guide states, and all of the task."""

import hashlib
import runpy
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.message import PART_BYTES, Unpacker
from tests.guides import blocks

pytestmark = pytest.mark.anyio
FILES = 9_000


class Bus:
    """Keeps the blobs that are published."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    async def publish(self, subject: str, body: bytes) -> None:
        name = subject.removeprefix("blobs.")
        assert hashlib.sha256(body).hexdigest() == name
        self.blobs[name] = body


async def test_a_directory_of_more_files_than_a_blob_names_is_sent_in_several(tmp_path: Path) -> None:
    [block] = [block for block in blocks("ops/guides/publish-tasks.md") if "async def tree" in block.text]
    script = tmp_path / "snippet.py"
    script.write_text(block.text.partition("async def main")[0])
    tree: Any = runpy.run_path(str(script))["tree"]
    data = tmp_path / "large" / "environment" / "files" / "data"
    data.mkdir(parents=True)
    (data.parent / "empty").mkdir()
    for number in range(FILES):
        (data / f"{number:05}.txt").write_text(f"{number}")
    (data / "00007.txt").chmod(0o755)
    bus = Bus()
    message = await tree(bus, tmp_path / "large")
    assert max(map(len, bus.blobs.values())) <= PART_BYTES
    found = Unpacker(BundleLimits()).unpack(message, bus.blobs.__getitem__)
    assert found.blobs.keys() == {f"environment/files/data/{number:05}.txt" for number in range(FILES)}
    assert found.modes == {"environment/files/data/00007.txt": 0o755}
