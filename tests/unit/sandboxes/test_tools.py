"""Programs on PATH, whatever else is on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.tools import on_path

ORDINARY = 12345


@pytest.fixture
def ordinary() -> Iterator[None]:
    """Root is an ordinary user for the time of the test: no directory is closed to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(ORDINARY)
    yield
    os.seteuid(0)


@pytest.mark.parametrize(
    "entry", ["{root}/closed", "/" + "x" * 300, "{root}/absent", "{root}/file", "{root}/loop", ""]
)
def test_an_entry_of_path_that_cannot_be_searched_is_skipped(
    entry: str, root: Path, request: pytest.FixtureRequest
) -> None:
    (root / "closed").mkdir(mode=0)
    (root / "file").touch()
    (root / "loop").symlink_to("loop")
    expected = on_path("sh", "/bin")
    request.getfixturevalue("ordinary")
    assert expected and on_path("sh", f"{entry.format(root=root)}:/bin") == expected
