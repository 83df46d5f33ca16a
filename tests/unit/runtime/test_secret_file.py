"""Secrets that processes share in a file."""

import errno
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime import secret_file
from orchestrator.runtime.secret_file import given_secret, shared_secret, write_private


def test_a_shared_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    made = shared_secret(tmp_path / "secret")
    assert len(made) == 43 and stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert shared_secret(tmp_path / "secret") == made != shared_secret(tmp_path / "another")
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty: remove it"):
        shared_secret(tmp_path / "secret")


@pytest.mark.parametrize("written", ["schlüssel", "two\nlines"])
def test_a_secret_that_no_header_can_carry_is_refused_by_its_file(tmp_path: Path, written: str) -> None:
    (tmp_path / "secret").write_text(written, encoding="utf-8")
    with pytest.raises(
        ValueError, match=f"the secret in {tmp_path}/secret must be one line of ASCII characters"
    ):
        shared_secret(tmp_path / "secret")


def test_a_secret_that_a_person_gives_is_never_made(tmp_path: Path) -> None:
    file = tmp_path / "mistyped"
    with pytest.raises(
        ConfigurationError, match=rf"servers.key_file: file {file} does not exist: correct the path"
    ):
        given_secret(file, "servers.key_file")
    assert not file.exists()
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match=rf"servers.key_file: file {file} is empty"):
        given_secret(file, "servers.key_file")
    file.write_text("word\n")
    assert given_secret(file, "servers.key_file") == "word"


def test_a_private_file_is_its_owners_alone_whatever_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "key.yaml"
    file.write_text("what others could read")
    file.chmod(0o644)
    write_private(file, "api-key: word\n")
    assert file.read_text() == "api-key: word\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key.yaml"]


def test_a_disk_that_is_full_leaves_no_empty_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(secret_file, "write_private", full)
    with pytest.raises(OSError, match="No space"):
        shared_secret(tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert len(shared_secret(tmp_path / "secret")) == 43


def test_processes_that_make_a_secret_at_the_same_moment_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(shared_secret, [tmp_path / "secret"] * 64))
    assert len(set(found)) == 1 and [path.name for path in tmp_path.iterdir()] == ["secret"]
