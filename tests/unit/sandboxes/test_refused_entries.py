"""Entries of a work directory that cannot be copied: the first are named, all are counted, and they take no memory."""

import os
import tracemalloc
from pathlib import Path

from sandboxes.artifacts import PlacedEntry, changed
from sandboxes.base import ArtifactLimits, Artifacts, File, RefusedReason

LIMITS = ArtifactLimits(depth=20)
PLACED = {f"src/m{i}.py": PlacedEntry.of(File(b"x")) for i in range(500)}


def with_pipes(top: Path, count: int) -> Path:
    """Pipes below a path of 3,000 characters, in ten directories."""
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(12):
        os.mkdir("d" * 250, dir_fd=fd)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    for i in range(10):
        os.mkdir(f"{i}", dir_fd=fd)
        for n in range(count // 10):
            os.mkfifo(f"{i}/{n}", dir_fd=fd)
    os.close(fd)
    return top


def measured(top: Path) -> tuple[Artifacts, int]:
    tracemalloc.start()
    try:
        found = changed(top, PLACED, LIMITS)
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_entries_that_cannot_be_copied_take_no_memory_and_are_counted(tmp_path: Path) -> None:
    few, least = measured(with_pipes(tmp_path / "few", 200))
    many, most = measured(with_pipes(tmp_path / "many", 20_000))
    assert most < 2 * least, (most, least)
    assert few.counts == {RefusedReason.SPECIAL: 200} and many.counts == {RefusedReason.SPECIAL: 20_000}
    assert len(few.refused) == len(many.refused) == 100 and not many.complete
    assert few.deleted == many.deleted == tuple(sorted(PLACED))


def test_nothing_below_a_refused_entry_counts_as_deleted(tmp_path: Path) -> None:
    paths = ("deep/in/a", "pipe/a", "piped", "link/a/b", "gone/a", "linked/a")
    placed = {path: PlacedEntry.of(File(b"x")) for path in paths}
    (tmp_path / "deep/in").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    for pipe in ("pipe", "piped"):
        os.mkfifo(tmp_path / pipe)
    (tmp_path / "link").symlink_to("/home")
    found = changed(tmp_path, placed, ArtifactLimits(depth=2))
    assert found.refused == (
        ("deep/in", RefusedReason.DEPTH),
        ("link", RefusedReason.OUTSIDE),
        ("pipe", RefusedReason.SPECIAL),
        ("piped", RefusedReason.SPECIAL),
    )
    assert found.deleted == ("gone/a", "linked/a", "piped")
    assert found.directories.keys() == {"deep", "linked"}
