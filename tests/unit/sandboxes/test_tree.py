"""File trees in hostile hands."""

import os
from pathlib import Path

import pytest

from sandboxes import tree
from sandboxes.base import File, PathRefused, RefusedReason


def test_removal_copes_with_a_tree_deeper_than_recursion_and_paths_allow(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    assert tree.usage(top).too_deep
    tree.remove(top)
    assert not top.exists()


def test_removal_takes_links_away_and_leaves_what_they_point_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(kept)
    (top / "closed").mkdir()
    (top / "closed" / "file").write_text("x")
    (top / "closed").chmod(0)
    tree.remove(top)
    tree.remove(top)
    assert not top.exists() and (kept / "file").read_text() == "x"


def test_usage_counts_what_a_sparse_file_occupies_not_what_it_claims(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    (tmp_path / "full").write_bytes(b"x" * 100_000)
    used = tree.usage(tmp_path)
    assert 100_000 <= used.bytes < 200_000
    assert used.files == 2 and not used.too_deep


def test_a_file_that_cannot_be_placed_leaves_no_temporary_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(PathRefused) as refused:
        tree.write(tmp_path, ["taken"], File(b"x"), None)
    assert refused.value.reason is RefusedReason.SPECIAL
    assert os.listdir(tmp_path) == ["taken"]


def test_special_mode_bits_do_not_cross(tmp_path: Path) -> None:
    tree.write(tmp_path, ["dir", "file"], File(b"x", 0o6755), None)
    assert (tmp_path / "dir" / "file").stat().st_mode & 0o7777 == 0o755


def test_a_link_on_the_way_is_refused_for_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    for attempt in (
        lambda: tree.read(tmp_path, ["link", "file"], 10),
        lambda: tree.write(tmp_path, ["link", "new"], File(b""), None),
    ):
        with pytest.raises(PathRefused) as refused:
            attempt()
        assert refused.value.reason is RefusedReason.LINK
    assert os.listdir(tmp_path / "real") == ["file"]
