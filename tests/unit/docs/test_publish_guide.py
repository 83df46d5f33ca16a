"""The program of the guide that publishes a large task is short, and with its second block sends every blob within the limit, and all of the task."""

import hashlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.message import PART_BYTES, Unpacker
from tests.guides import PAGES, blocks

pytestmark = pytest.mark.anyio
PAGE = "ops/guides/publish-tasks.md"
FILES = 9_000
LINES = 25


def programs() -> tuple[str, str]:
    """The program, and the function for large directories."""
    found = {
        name: block.text
        for block in blocks(PAGE)
        for name in ("async def tree", "def pieces")
        if block.language == "python" and name in block.text
    }
    return found["async def tree"], found["def pieces"]


def splitting() -> str:
    """The program with the change that the guide names for large directories, up to where it runs."""
    program, pieces = programs()
    (value,) = re.findall(r"`(\[await blob.*\])` as the value", PAGES[PAGE])
    line = 'found["trees"][path.name] = '
    changed, count = re.subn(rf"({re.escape(line)}).*", lambda found: found[1] + value, program)
    assert count == 1
    return f"{pieces}\n\n{changed.partition('async def main')[0]}"


def test_each_block_has_as_few_lines_as_the_guide_says() -> None:
    assert f"in {LINES} lines:" in PAGES[PAGE]
    for text in programs():
        assert len([line for line in text.splitlines() if line.strip()]) <= LINES, text


class Bus:
    """Keeps the blobs that are published."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    async def publish(self, subject: str, body: bytes) -> None:
        name = subject.removeprefix("blobs.")
        assert hashlib.sha256(body).hexdigest() == name
        self.blobs[name] = body


async def test_a_directory_of_more_files_than_a_blob_names_is_sent_in_several(tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(splitting())
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
