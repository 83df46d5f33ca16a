"""The objects of git repositories as git itself packs them, damaged packs, and packs that are larger than they look."""

import hashlib
import random
import subprocess
import zlib
from pathlib import Path

import pytest

from orchestrator.tasks import git_objects
from orchestrator.tasks.harbor import Task, load
from orchestrator.tasks.vetting.forms import Form, views

ANSWER = "    return total / max(len(values), 1)  # the empty list"
TASK = {"task.toml": "", "instruction.md": "Fix it.", "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n"}


def git(repository: Path, *words: str, given: bytes = b"") -> bytes:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=repository, check=True, stdout=subprocess.PIPE, input=given).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of files that change by a line, and of an answer that was removed again."""
    directory, rng = tmp_path_factory.mktemp("repository"), random.Random(7)
    git(directory, "init", "-q")
    lines = [f"line {rng.random()}" for _ in range(400)]
    for number in range(12):
        lines[rng.randrange(400)] = ANSWER if number == 4 else f"changed {rng.random()}"
        lines = [line if line != ANSWER or number == 4 else "gone" for line in lines]
        (directory / "a.py").write_text("\n".join(lines))
        git(directory, "add", "-A")
        git(directory, "commit", "-qm", f"change {number}")
    return directory


def contents(repository: Path) -> list[str]:
    """The hashes of all objects, by git."""
    listed = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    pairs = [line.split() for line in listed.decode().splitlines()]
    return sorted(hashlib.sha256(git(repository, "cat-file", kind, name)).hexdigest() for name, kind in pairs)


@pytest.mark.parametrize("deltas", ["--delta-base-offset", "--no-reuse-delta"])  # by place, by name
def test_each_object_of_a_pack_is_read_as_git_reads_it(repository: Path, deltas: str) -> None:
    names = git(repository, "rev-list", "--objects", "--all")
    data = git(repository, "pack-objects", "-q", "--stdout", "--depth=50", deltas, given=names)
    found = sorted(hashlib.sha256(each).hexdigest() for each in git_objects.packed(data))
    assert found == contents(repository) and len(found) == 36


def test_a_bundle_is_a_pack_and_loose_objects_are_read(repository: Path) -> None:
    git(repository, "bundle", "create", "-q", "../whole.bundle", "--all")
    data = (repository.parent / "whole.bundle").read_bytes()
    assert len(list(git_objects.packed(data))) == 36
    loose = [path for path in (repository / ".git").rglob("*") if git_objects.is_loose(path.as_posix())]
    assert len(loose) == 36 and all(git_objects.loose(path.read_bytes()) is not None for path in loose)
    assert git_objects.loose(b"no object") is None


def test_an_answer_that_was_removed_again_is_found_in_the_history(repository: Path, tmp_path: Path) -> None:
    git(repository, "clone", "-q", "--bare", ".", str(tmp_path / "bare"))
    git(tmp_path / "bare", "gc", "-q", "--aggressive")
    (pack,) = (tmp_path / "bare/objects/pack").glob("*.pack")
    assert ANSWER.encode() not in pack.read_bytes()
    assert Form.COMPRESSED in {view.form for view in views(pack.read_bytes()) if ANSWER.encode() in view.text}
    place = "environment/files/.git/objects/pack/" + pack.name
    files = {path: body.encode() for path, body in TASK.items()} | {place: pack.read_bytes()}
    assert Task.from_files(files).bundle.files[place].size
    with pytest.raises(ValueError, match=r"\.pack holds the whole text of solution/solve.sh in an object"):
        Task.from_files({**files, "solution/solve.sh": ANSWER.encode()})


def test_a_directory_with_a_repository_is_a_task(repository: Path, tmp_path: Path) -> None:
    for path, body in TASK.items():
        (tmp_path / "task" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / path).write_text(body)
    (tmp_path / "task/environment").mkdir()
    git(repository, "clone", "-q", "--no-local", ".", str(tmp_path / "task/environment/files"))
    found = load(tmp_path / "task")
    assert "environment/files/.git/HEAD" in found.files
    assert Task.from_message(found.to_message()).content_hash == found.content_hash


def entry(kind: int, size: int, body: bytes) -> bytes:
    head, size = [kind << 4 | size & 15], size >> 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head) + body


def pack(*entries: bytes) -> bytes:
    return b"PACK\0\0\0\2" + len(entries).to_bytes(4) + b"".join(entries) + bytes(20)


BLOB = entry(3, 20, zlib.compress(b"x" * 20))
COPY = bytes([20, 20, 0x90, 20])  # from 20 bytes make 20: all of the base


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"PACK\0\0\0\2", "cut off|damaged"),
        (b"PACK\0\0\0\4\0\0\0\0", "no pack of version 2 or 3"),
        (pack(BLOB)[:-30], "cut off|damaged"),
        (pack(entry(3, 21, zlib.compress(b"x" * 20))), "damaged"),
        (pack(entry(3, 19, zlib.compress(b"x" * 20))), "damaged"),
        (pack(entry(5, 20, zlib.compress(b"x" * 20))), "damaged"),
        (pack(entry(3, 1 << 40, zlib.compress(b"x"))), "one of more than 256 MB"),
        (pack(entry(3, 9, b"no zlib at all")), "damaged"),
        (pack(BLOB, entry(6, 4, bytes([1]) + zlib.compress(COPY))), "damaged"),
        (pack(entry(7, 4, bytes(20) + zlib.compress(COPY))), "build on others that are not there"),
        (pack(BLOB, entry(6, 3, bytes([len(BLOB)]) + zlib.compress(COPY[:3]))), "cut off"),
        (pack(BLOB, entry(6, 4, bytes([len(BLOB)]) + zlib.compress(bytes([9, 20, 0x90, 20])))), "damaged"),
        (pack(BLOB, entry(6, 4, bytes([len(BLOB)]) + zlib.compress(bytes([20, 20, 0x90, 21])))), "damaged"),
        (pack(BLOB, entry(6, 3, bytes([len(BLOB)]) + zlib.compress(bytes([20, 20, 0])))), "damaged"),
    ],
)
def test_a_damaged_pack_is_refused_by_its_flaw(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        list(git_objects.packed(data))


def test_a_pack_of_deltas_that_is_larger_than_it_looks_is_refused(repository: Path) -> None:
    assert [
        len(each)
        for each in git_objects.packed(pack(BLOB, entry(6, 4, bytes([len(BLOB)]) + zlib.compress(COPY))))
    ] == [20, 20]
    size = 1 << 20
    large = entry(3, size, zlib.compress(bytes(size)))
    with pytest.raises(git_objects.TooMuch, match="more than 256 MB"):
        list(git_objects.packed(pack(*[large] * 300)))
    with pytest.raises(git_objects.TooMuch):
        git_objects.loose(zlib.compress(b"blob 2000000\0" + bytes(2_000_000)), 1000)
