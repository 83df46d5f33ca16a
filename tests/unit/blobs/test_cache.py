"""The cache of blobs gives the bytes that a name promises, also from a disk to which others wrote."""

import errno
import hashlib
import tempfile
from pathlib import Path

import pytest

from orchestrator.blobs.cache import BlobCache, default_root
from orchestrator.blobs.task_files import TaskFiles
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.tasks import TasksSection
from orchestrator.tasks.message import BlobFile
from sandboxes.base import SandboxError

PARTS = {hashlib.sha256(body).hexdigest(): body for body in (b"first part", b"second")}
WHOLE = BlobFile(tuple(PARTS), sum(map(len, PARTS.values())))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return default_root()


def test_a_file_that_was_changed_on_the_disk_is_missing_at_its_first_use_by_a_process(root: Path) -> None:
    BlobCache(root, 1 << 20).add(PARTS)
    changed, whole = PARTS
    (root / changed[:2] / changed).write_bytes(b"other part")
    later = BlobCache(root, 1 << 20)
    assert later.missing(PARTS) == [changed]
    later.add({changed: PARTS[changed]})
    assert later.missing(PARTS) == [] and later.read(whole) == PARTS[whole]


def test_a_file_of_several_blobs_that_was_changed_on_the_disk_is_made_again(root: Path) -> None:
    first = BlobCache(root, 1 << 20)
    first.add(PARTS)
    stored = first.stored(WHOLE, 0o644)
    path = Path(stored.source)
    path.write_bytes(b"x" * WHOLE.size)
    later = BlobCache(root, 1 << 20)
    assert later.missing(PARTS) == []
    assert Path(later.stored(WHOLE, 0o644).source).read_bytes() == b"".join(PARTS.values())


class Counted(BlobCache):
    """Counts the blobs that are read."""

    reads = 0

    def read(self, sha: str) -> bytes:
        self.reads += 1
        return super().read(sha)


@pytest.mark.parametrize(("size", "reads"), [(1, 1), (25, 3), (200_001, 20_000)])
def test_a_list_of_blobs_is_joined_up_to_the_size_of_its_file_and_a_wrong_size_leaves_no_file(
    root: Path, size: int, reads: int
) -> None:
    cache = Counted(root, 1 << 20)
    cache.add(PARTS)
    first, _ = PARTS
    with pytest.raises(ValueError, match=rf"a file of {size:,} bytes lies in blobs of (more|200,000) bytes"):
        cache.stored(BlobFile((first,) * 20_000, size), 0o644)
    assert cache.reads == reads
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == sorted(PARTS)


def test_no_other_user_reads_the_default_directory(root: Path) -> None:
    BlobCache(root, 1 << 20).add(PARTS)
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_default_directory_that_others_can_write_is_refused_by_name(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(SandboxError, match="is writable by other users"):
        BlobCache(root, 1 << 20).missing(PARTS)
    with pytest.raises(ConfigurationError, match=r"penstock-blobs-.* or name one in tasks\.cache_dir"):
        TaskFiles.of(None, TasksSection())  # type: ignore[arg-type]  # it is not used


def test_a_directory_that_cannot_be_written_is_refused_by_its_key_and_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    below = TasksSection(cache_dir=str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigurationError, match=r"file/cache for the files .*; .* in tasks\.cache_dir"):
        TaskFiles.of(None, below)  # type: ignore[arg-type]  # it is not used
    section = TasksSection(cache_dir=str(tmp_path / "new" / "cache"))
    TaskFiles.of(None, section)  # type: ignore[arg-type]  # it is not used
    assert list((tmp_path / "new" / "cache").iterdir()) == []

    def full(path: Path, _: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    TaskFiles.of(None, section)  # type: ignore[arg-type]  # it is not used


def test_a_directory_that_the_configuration_names_is_its_operators(root: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    cache = BlobCache(shared, 1 << 20)
    cache.add(PARTS)
    assert cache.missing(PARTS) == [] and shared.stat().st_mode & 0o7777 == 0o2775
