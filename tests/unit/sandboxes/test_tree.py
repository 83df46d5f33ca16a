"""File trees in hostile hands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tasks.held import files as held
from sandboxes import tree
from sandboxes.base import File, PathRefused, RefusedReason

REPOSITORY = Path(tree.__file__).parents[1]


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
    assert tree.TreeUsage(most_bytes=1 << 40, most_files=1 << 20).add(top).too_deep
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
    used = tree.TreeUsage(most_bytes=1 << 20, most_files=100).add(tmp_path)
    assert 100_000 <= used.bytes < 200_000
    assert used.files == 2 and not used.over


@pytest.mark.parametrize("count", [tree.TreeUsage, held.FileUsage])
def test_a_count_ends_at_its_limit_however_much_lies_there_and_says_that_it_is_over(
    tmp_path: Path, count: type[tree.TreeUsage] | type[held.FileUsage]
) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        for n in range(100):
            (tmp_path / place / str(n)).write_bytes(b"x" * 10_000)
    whole = count(most_bytes=1 << 30, most_files=1000).add(tmp_path)
    assert (whole.files, whole.over) == (202, False)
    few = count(most_bytes=1 << 30, most_files=50).add(tmp_path).add(tmp_path)
    assert (few.files, few.over) == (51, True)
    small = count(most_bytes=100_000, most_files=1000).add(tmp_path)
    assert small.over and small.bytes < 200_000


@pytest.mark.parametrize("count", [tree.TreeUsage, held.FileUsage])
def test_a_program_that_moves_what_was_counted_does_not_hold_up_the_count(
    tmp_path: Path, count: type[tree.TreeUsage] | type[held.FileUsage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves a directory, as soon as it is listed, to the name that is listed next."""
    for n in range(100):
        (tmp_path / f"{n:02}").mkdir()
        (tmp_path / "00" / str(n)).touch()
    listed = os.listdir

    def move(fd: int) -> list[str]:
        found = sorted(listed(fd))
        here = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if here != tmp_path and found and (ahead := tmp_path / f"{int(here.name) + 1:02}").exists():
            ahead.rmdir()
            here.rename(ahead)
        return found

    monkeypatch.setattr(os, "listdir", move)
    used = count(most_bytes=1 << 30, most_files=300).add(tmp_path)
    assert used.over and used.files == 301


def test_usage_counts_what_lies_in_a_directory_that_its_owner_closed_and_leaves_it_closed(
    tmp_path: Path,
) -> None:
    modes = {"none": 0o000, "list": 0o400, "pass": 0o100, "none/in": 0o000, "open": 0o755}
    for name in modes:
        (tmp_path / name).mkdir()
        (tmp_path / name / "full").write_bytes(b"x" * 100_000)
    for name, mode in reversed(modes.items()):
        (tmp_path / name).chmod(mode)
    look = "from sandboxes.tree import TreeUsage; used = TreeUsage(most_bytes=1 << 40, most_files=99).add(place); print(used.files, used.bytes)"
    files, size = map(int, as_owner(look, tmp_path).split())
    assert files == 2 * len(modes) and size >= 100_000 * len(modes)
    for name, mode in modes.items():
        if os.geteuid() == 0 or "/" not in name:
            assert (tmp_path / name).stat().st_mode & 0o777 == mode, name
    tree.remove(tmp_path / "none")


def test_a_work_directory_that_its_owner_closed_is_compared_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("x")
    compare = "from sandboxes import artifacts, base; print(*artifacts.changed(place, {}, base.ArtifactLimits()).added)"
    for mode in (0o000, 0o400):
        tmp_path.chmod(mode)
        assert as_owner(compare, tmp_path) == "made\n"


def as_owner(code: str, place: Path) -> str:
    """Python's output as an ordinary owner: root without capabilities, too."""
    become = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []
    head = "import sys; from pathlib import Path; place = Path(sys.argv[1]); "
    done = subprocess.run(
        [*become, sys.executable, "-c", head + code, str(place)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_file_that_its_owner_closed_is_read_and_stays_closed(tmp_path: Path) -> None:
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "reward").write_text("1")
    (tmp_path / "verifier" / "reward").chmod(0o200)
    (tmp_path / "verifier").chmod(0)
    look = "from sandboxes import tree; print(tree.read(place, ['verifier', 'reward'], 10))"
    assert as_owner(look, tmp_path).strip() == "b'1'"
    assert (tmp_path / "verifier").stat().st_mode & 0o777 == 0
    (tmp_path / "verifier").chmod(0o755)
    assert (tmp_path / "verifier" / "reward").stat().st_mode & 0o777 == 0o200


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
