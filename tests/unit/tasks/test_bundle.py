"""Links, empty directories, permission bits and large files of a task: on disk, in messages and in blobs."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.settings.tasks import TasksSection
from orchestrator.tasks import read_directory as reader
from orchestrator.tasks.artifacts import packed, with_artifacts
from orchestrator.tasks.bundle import Bundle, BundleLimits
from orchestrator.tasks.harbor import Task, load
from orchestrator.tasks.message import MAX_MESSAGE_BYTES, PART_BYTES, BlobFile, Packed, Unpacker, pack
from orchestrator.tasks.multi_step import steps_of
from orchestrator.tasks.read_directory import Shared, read_directory
from orchestrator.tasks.sources import each
from sandboxes.base import AnyFile, File, Limits, StoredFile
from sandboxes.bubblewrap import BubblewrapProvider

BASE = {
    "task.toml": b"",
    "instruction.md": b"say hello\n",
    "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt\n",
}


def written(directory: Path) -> Path:
    Task.from_files(BASE).write(directory)
    files = directory / "environment" / "files"
    (files / "bin").mkdir(parents=True)
    (files / "bin" / "run").write_text("no interpreter line\n")
    (files / "bin" / "run").chmod(0o755)
    (files / "locked").write_bytes(b"\x00\x01")
    (files / "locked").chmod(0o444)
    (files / "here").symlink_to("bin/run")
    (files / "shell").symlink_to("/bin/sh")
    (files / "empty" / "deeper").mkdir(parents=True)
    (files / "closed").mkdir()
    (files / "closed" / "x").write_text("x")
    (files / "closed").chmod(0o555)
    return directory


def unpacked(sent: Packed) -> Bundle:
    """The bundle as a reader rebuilds it from the message and its blobs alone."""
    bodies = {sha: part.read() for sha, part in sent.parts.items()}

    def stored(blob: BlobFile, mode: int) -> AnyFile:
        body = b"".join(bodies[sha] for sha in blob.parts)
        assert len(body) == blob.size
        return File(body, mode)

    message = json.loads(json.dumps(sent.message))
    return Unpacker().unpack(message, bodies.__getitem__).bundle(stored)


def contents(bundle: Bundle) -> tuple[Any, ...]:
    files = {path: (file.data, file.mode) for path, file in bundle.files.items()}
    return files, dict(bundle.links), dict(bundle.directories)


def test_links_empty_directories_and_permission_bits_survive_disk_and_message(tmp_path: Path) -> None:
    task = load(written(tmp_path / "one"))
    files = task.bundle.files
    assert {path for path in files if files[path].mode != 0o644} == {
        "environment/files/bin/run",
        "environment/files/locked",
    }
    assert task.bundle.links == {"environment/files/here": "bin/run", "environment/files/shell": "/bin/sh"}
    assert task.bundle.directories == {
        "environment/files/closed": 0o555,
        "environment/files/empty/deeper": 0o755,
    }
    copy = Task.from_message(json.loads(json.dumps(task.to_message())))
    assert copy == task and copy.content_hash == task.content_hash
    task.write(tmp_path / "two")
    assert load(tmp_path / "two") == task
    environment = task.environment(None)
    assert environment.links == {"/app/here": "bin/run", "/app/shell": "/bin/sh"}
    assert environment.modes == {"/app/closed": 0o555, "/app/empty/deeper": 0o755}


@pytest.mark.parametrize("as_a_file", [False, True])
def test_git_at_a_tasks_root_is_not_of_the_task_and_in_its_environment_it_is(
    tmp_path: Path, as_a_file: bool
) -> None:
    task = load(written(tmp_path))
    if as_a_file:
        (tmp_path / ".git").write_text("gitdir: /elsewhere\n")
    else:
        (tmp_path / ".git" / "objects").mkdir(parents=True)
        (tmp_path / ".git" / "index").write_bytes(os.urandom(8))
    assert load(tmp_path) == task
    (tmp_path / "environment" / "files" / ".git").mkdir()
    (tmp_path / "environment" / "files" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert set(load(tmp_path).files) - set(task.files) == {"environment/files/.git/HEAD"}


def test_a_dockerfile_copies_links_and_empty_directories(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "environment" / "Dockerfile").write_text(
        "FROM debian:12\nCOPY files /app/in\nCOPY files/here /app/once\n"
    )
    environment = load(tmp_path).environment(None)
    assert environment.links == {"/app/in/here": "bin/run", "/app/in/shell": "/bin/sh"}
    assert environment.modes == {"/app/in/closed": 0o555, "/app/in/empty/deeper": 0o755}
    assert (
        environment.files["/app/once"]
        == environment.files["/app/in/bin/run"]
        == File(b"no interpreter line\n", 0o755)
    )


def test_modes_are_those_of_the_author_and_not_of_a_umask(tmp_path: Path) -> None:
    places = ("environment/files", "steps/one/workdir", "tests/x", "solution/x", "steps/one/tests/x")
    modes = {
        "private": 0o600,
        "script": 0o644,
        "program": 0o750,
        "all": 0o666,
        "group": 0o664,
        "bits": 0o4755,
    }

    def found(umask: int) -> dict[str, dict[str, int]]:
        directory = tmp_path / f"{umask:o}"
        before = os.umask(umask or 0o022)
        for place in places:
            (directory / place / "closed").mkdir(parents=True)
            for name, mode in modes.items():
                (directory / place / name).write_text("#!/bin/sh\n")
                (directory / place / name).chmod(mode & ~umask)
            (directory / place / "closed").chmod(0o700)
            (directory / place / "shared").mkdir()
            (directory / place / "shared").chmod(0o1777 & ~umask)
        os.umask(before)
        bundle = read_directory(directory)
        return {
            place: {
                **{name: bundle.files[f"{place}/{name}"].mode for name in modes},
                **{name: bundle.directories.get(f"{place}/{name}", 0o755) for name in ("closed", "shared")},
            }
            for place in places
        }

    kept = {
        "private": 0o600,
        "script": 0o644,
        "program": 0o750,
        "all": 0o666,
        "group": 0o644,
        "bits": 0o755,
        "closed": 0o700,
        "shared": 0o777,
    }
    usual = {
        "private": 0o700,
        "script": 0o755,
        "program": 0o750,
        "all": 0o777,
        "group": 0o755,
        "bits": 0o755,
        "closed": 0o700,
        "shared": 0o777,
    }
    for place, known in found(0).items():
        agents = place in ("environment/files", "steps/one/workdir")
        # A program among the tests can be started in any case.
        assert known == (kept if agents else usual), place
    for known in found(0o077).values():
        assert (known["private"] & 0o044, known["closed"], known["shared"]) == (0o044, 0o755, 0o755)


def test_links_and_empty_directories_travel_in_tests_and_solutions_and_work_directories(
    tmp_path: Path,
) -> None:
    steps = {
        "task.toml": b'[[steps]]\nname = "one"\n',
        "steps/one/instruction.md": b"do it",
        "tests/data/a": b"a",
    }
    Task.from_files({**steps, "tests/test.sh": BASE["tests/test.sh"], "solution/solve.sh": b"true"}).write(
        tmp_path
    )
    for folder in ("tests", "solution", "steps/one/workdir", "steps/one/tests"):
        (tmp_path / folder / "empty").mkdir(parents=True)
        (tmp_path / folder / "here").symlink_to("empty")
    (tmp_path / "steps/one/workdir/a").write_text("a")
    (tmp_path / "steps/one/workdir/to-a").symlink_to("a")
    (tmp_path / "README").write_text("about")
    (tmp_path / "README.md").symlink_to("README")
    task = load(tmp_path)
    assert task == Task.from_message(json.loads(json.dumps(task.to_message())))
    assert task.files["README.md"].data == b"about"
    (step,) = steps_of(task)
    assert step.placed.links == {"here": "empty", "to-a": "a"} and step.placed.directories == {"empty": 0o755}
    tests, solution = step.task.tests_bundle, step.task.solution_bundle
    assert (tests.links, tests.directories) == ({"here": "empty"}, {"empty": 0o755})
    assert (solution.links, solution.directories) == ({"/solution/here": "empty"}, {"/solution/empty": 0o755})
    after = step.over(task.environment(None))
    assert after.links == {"/app/here": "empty", "/app/to-a": "a"} and after.modes == {"/app/empty": 0o755}
    (tmp_path / "steps/one/workdir/out").symlink_to("../tests/here")
    with pytest.raises(
        ValueError, match=r"steps/one/workdir/out is a link to '\.\./tests/here', which leads out of"
    ):
        load(tmp_path)


def test_a_link_among_the_tests_becomes_a_copy_of_its_file(tmp_path: Path) -> None:
    Task.from_files({**BASE, "tests/data/a": b"a"}).write(tmp_path)
    (tmp_path / "tests" / "b").symlink_to("data/a")
    assert load(tmp_path).tests_files()["b"] == File(b"a")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("/etc/passwd", "environment/files/odd is a link to '/etc/passwd', which leads out of /app"),
        (
            "../../solution/solve.sh",
            "environment/files/odd is a link to '../../solution/solve.sh', which leads out of environment/",
        ),
        ("../Dockerfile", "environment/files/odd is a link to '../Dockerfile', which leads out of /app"),
    ],
)
def test_a_link_out_of_the_work_directory_is_refused(tmp_path: Path, target: str, sentence: str) -> None:
    Task.from_files({**BASE, "environment/files/a": b"a"}).write(tmp_path)
    (tmp_path / "environment" / "files" / "odd").symlink_to(target)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load(tmp_path).environment(None)


def large(directory: Path, *, changed: str = "") -> Task:
    """A task of about 3 MB: a repository of 60 files in 12 directories, and one file of several blobs."""
    Task.from_files({**BASE, "tests/expected": os.urandom(10)}).write(directory)
    files = directory / "environment" / "files"
    for number in range(60):
        path = files / f"d{number % 12}" / "src" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" * 2000)
    (files / "data.bin").write_bytes(bytes(range(256)) * 9000)
    (files / "empty").mkdir()
    (files / "to").symlink_to("d1/src")
    if changed:
        (files / "d3" / "src" / "f3.py").write_text(changed)
    return load(directory)


def test_a_large_task_is_the_same_after_its_blobs(tmp_path: Path) -> None:
    task = large(tmp_path)
    sent = task.packed
    assert len(json.dumps(sent.message)) < MAX_MESSAGE_BYTES
    assert max(part.size for part in sent.parts.values()) <= PART_BYTES
    assert sent.message["files"].keys() >= {"task.toml", "instruction.md", "tests/test.sh"}
    assert contents(unpacked(sent)) == contents(task.bundle)
    assert isinstance(task.files["environment/files/data.bin"], StoredFile)


def test_tasks_that_share_a_repository_share_its_blobs(tmp_path: Path) -> None:
    one, other = large(tmp_path / "one"), large(tmp_path / "other", changed="fixed\n" * 100)
    own = {sha for sha in other.packed.parts if sha not in one.packed.parts}
    sizes = sum(other.packed.parts[sha].size for sha in own)
    # The changed file, its three directories, and the folder of the tests: everything else is shared.
    assert len(own) <= 6 and sizes < 12_000
    assert one.content_hash != other.content_hash
    assert one.content_hash == load(tmp_path / "one").content_hash


def test_the_message_of_a_large_task_holds_every_instruction() -> None:
    texts = {
        "task.toml": b'[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        "steps/one/instruction.md": b"Write one. " * 20,
        "steps/two/instruction.md": b"Write two. " * 20,
        "steps/two/tests/test.sh": b"exit 1\n" * 40,
        "tests/test.sh": b"exit 1\n",
    }
    packed = pack(Bundle.of(texts), inline=False)
    held = packed.message["files"]
    assert held["steps/one/instruction.md"] == texts["steps/one/instruction.md"].decode()
    assert set(held) == set(texts) - {"steps/two/tests/test.sh"} and set(packed.message["trees"]) == {"steps"}
    bodies = {sha: part.read() for sha, part in packed.parts.items()}
    listing = Unpacker().unpack(packed.message, bodies.__getitem__)
    assert {*listing.files, *listing.blobs} == set(texts)


def test_a_file_that_changes_while_it_is_published_is_noticed(tmp_path: Path) -> None:
    task = large(tmp_path)
    part = next(part for part in task.packed.parts.values() if part.start)
    (tmp_path / "environment" / "files" / "data.bin").write_bytes(b"\1" * 9000 * 256)
    with pytest.raises(ValueError, match="a file changed while it was sent: send it again"):
        part.read()


SHA = "0" * 64


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"blobs": {"a": {"parts": [SHA]}}}, '"blobs" must hold {"parts": [sha256, …], "size": bytes}'),
        ({"blobs": {"a": {"parts": [], "size": 0}}}, "a: a list of blobs is needed, got []"),
        ({"blobs": {"a": {"parts": ["x"], "size": 1}}}, "a: 'x' is not a sha256"),
        ({"blobs": {"a": {"parts": [SHA], "size": 900_001}}}, "a: 900001 bytes cannot lie in 1 blobs"),
        ({"blobs": {"../a": {"parts": [SHA], "size": 1}}}, "'../a' is not a plain relative path"),
        ({"files": {"a": "x"}, "blobs": {"a": {"parts": [SHA], "size": 1}}}, "a comes twice"),
        ({"modes": {"a": "4755"}}, '"modes" must hold three octal digits such as "755"'),
        ({"modes": {"a": 755}}, '"modes" must hold three octal digits'),
        ({"modes": {"a": "755"}}, '"modes" has a, which is not a file of the task'),
        ({"links": {"a": 1}}, '"links" must hold the target of each link, got 1 at a'),
        ({"trees": {"a": SHA}}, "a: a list of blobs is needed"),
        ({"trees": {"a": [SHA]}}, "a: its tree is not JSON"),
        ({"trees": {"a": ["1" * 64, SHA, "1" * 64]}}, "a: its list of trees names one twice"),
        ({"blobs": {"a": {"parts": [SHA] * 3, "size": 2}}}, "a: 2 bytes cannot lie in 3 blobs: leave out"),
    ],
)
def test_each_flaw_of_a_message_with_blobs_is_one_sentence(message: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        Unpacker().unpack(message, {SHA: b"{"}.__getitem__)
    assert "\n" not in str(caught.value)


def test_a_tree_that_doubles_itself_ends_at_the_limits() -> None:
    doubling = json.dumps({"trees": {"a": [SHA], "b": [SHA]}}).encode()
    with pytest.raises(ValueError, match=r"directories lie more than 64 deep|it has more than 1,000 files"):
        Unpacker(BundleLimits(entries=1000)).unpack({"trees": {"x": [SHA]}}, {SHA: doubling}.__getitem__)
    heavy = {"blobs": {f"f{n}": {"parts": [SHA] * 70, "size": 63_000_000} for n in range(5)}}
    with pytest.raises(ValueError, match="it has more than 256 MB, the most that a task may have"):
        Unpacker().unpack(heavy, {"": b""}.__getitem__)


NAMES = [f"{number:064x}" for number in range(400)]


@pytest.mark.parametrize(
    ("message", "trees", "most"),
    [
        # 160,000 reads of empty trees behind 401 names, and 90 MB of a key that means nothing
        (
            {"trees": {f"a{name}": [SHA] for name in range(400)}},
            {SHA: {"trees": {"x": NAMES[1:]}}, **{name: {} for name in NAMES[1:]}},
            301,
        ),
        ({"trees": {f"a{name}": [SHA] for name in range(100)}}, {SHA: {"odd": "x" * 900_000}}, 3),
    ],
)
def test_trees_that_are_named_again_and_again_end_at_the_limits(
    message: Mapping[str, Any], trees: Mapping[str, Any], most: int
) -> None:
    bodies = {sha: json.dumps(tree).encode() for sha, tree in trees.items()}
    read = []

    def tree(sha: str) -> bytes:
        read.append(sha)
        return bodies[sha]

    with pytest.raises(ValueError, match="its trees are more than 100 files, links and directories need"):
        Unpacker(BundleLimits(entries=100, bytes=1 << 20)).unpack(message, tree)
    assert len(read) == most


def test_files_in_more_blobs_than_any_task_needs_are_refused() -> None:
    message = {"blobs": {f"f{number}": {"parts": [SHA] * 60, "size": 60} for number in range(2)}}
    with pytest.raises(ValueError, match="its files lie in more than 116 blobs, with f1: send larger ones"):
        Unpacker(BundleLimits(entries=100, bytes=1 << 20)).unpack(message, {"": b""}.__getitem__)


@pytest.mark.parametrize(
    ("bundle", "sentence"),
    [
        (Bundle(files={"a": File(b"")}, links={"a": "b"}), "a comes twice"),
        (Bundle(files={"a/b": File(b"")}, links={"a": "c"}), "a: a task cannot have both this file and a/b"),
        (Bundle(files={}, links={"x/a": "../../y"}), "x/a is a link to '../../y', which leads out of x/"),
        (Bundle(files={}, directories={"../a": 0o755}), "'../a' is not a plain relative path"),
        (
            Bundle(files={"a": StoredFile(source=Path("/x"), size=65 << 20)}),
            "a has 65.0 MB, and a file of a task has at most 64 MB",
        ),
        (
            Bundle(files={str(n): StoredFile(source=Path("/x"), size=60 << 20) for n in range(5)}),
            "it has 300.0 MB, and a task has at most 256 MB",
        ),
        (
            Bundle(files={str(n): File(b"") for n in range(20_001)}),
            "it has 20,001 files, links and directories",
        ),
    ],
)
def test_a_bundle_that_collides_or_is_too_large_is_refused(bundle: Bundle, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        bundle.check()


def test_a_small_bundle_is_one_message() -> None:
    sent = pack(Bundle.of(BASE))
    assert sent.parts == {} and set(sent.message) == {"files"}


@pytest.mark.anyio
async def test_what_a_task_places_and_an_agent_changes_reaches_the_tests(tmp_path: Path) -> None:
    task = load(written(tmp_path / "task"))
    provider, pristine = BubblewrapProvider(), task.environment(None)
    agent = "test -x bin/run && readlink here shell && rmdir empty/deeper && rm shell && ln -sfn closed/x here && echo new > locked2"
    async with provider.open(pristine.spec(pristine.files, Limits())) as sandbox:
        ran = await sandbox.exec(["sh", "-c", agent])
        assert ran.ok and ran.stdout == b"bin/run\n/bin/sh\n", ran
        changed = await sandbox.changed()
    after = with_artifacts(pristine, packed(changed))
    assert after.links == {"/app/here": "closed/x"}
    assert after.modes == {"/app/closed": 0o555, "/app/empty": 0o755}
    look = "find . -printf '%p %M %l\\n' | sort"
    async with provider.open(after.spec(after.files, Limits())) as sandbox:
        seen = (await sandbox.exec(["sh", "-c", look])).stdout.decode().split("\n")
    assert seen == [
        ". drwxr-xr-x ",
        "./bin drwxr-xr-x ",
        "./bin/run -rwxr-xr-x ",
        "./closed dr-xr-xr-x ",
        "./closed/x -rw-r--r-- ",
        "./empty drwxr-xr-x ",
        "./here lrwxrwxrwx closed/x",
        "./locked -r--r--r-- ",
        "./locked2 -rw-r--r-- ",
        "",
    ]


def test_a_run_that_takes_smaller_tasks_says_so_before_anything_is_sent(tmp_path: Path) -> None:
    large(tmp_path / "large")
    small = BundleLimits.of(TasksSection(max_mb=1, max_file_mb=1))
    [(_, found)] = each([tmp_path / "large"], small)
    assert (
        found
        == f"{tmp_path}/large: environment/files/data.bin has 2.2 MB, and a file of a task has at most 1 MB"
    )
    [(_, taken)] = each([tmp_path / "large"], BundleLimits.of(TasksSection()))
    assert isinstance(taken, Task)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that are read from here on."""
    paths: list[str] = []
    file = reader._file

    def noted(path: str, *rest: Any, **options: Any) -> AnyFile:
        paths.append(path)
        return file(path, *rest, **options)

    monkeypatch.setattr(reader, "_file", noted)
    return paths


@pytest.mark.parametrize(
    ("limits", "files", "sentence"),
    [
        (BundleLimits(entries=100), 100, "it has more than 100 files, links and directories, the most that"),
        (BundleLimits(bytes=1 << 20), 16, "it has more than 1 MB, the most that a task may have"),
        (BundleLimits(file_bytes=0), 0, "tests/3/0 has 0.1 MB, and a file of a task has at most 0 MB"),
    ],
)
def test_no_file_is_read_beyond_the_limits(
    tmp_path: Path, read: list[str], limits: BundleLimits, files: int, sentence: str
) -> None:
    for number in range(200):
        path = tmp_path / "tests" / str(number % 4) / str(number // 4)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 65_536)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_directory(tmp_path, limits)
    assert len(read) == files


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_folder_of_more_entries_than_a_task_may_have_is_not_listed_to_its_end(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    (tmp_path / "tests").mkdir(mode=mode | 0o100)
    for number in range(1000):
        (tmp_path / "tests" / str(number)).touch(mode)
    listed: list[str] = []

    class Scan(AbstractContextManager[Iterator[os.DirEntry[str]]]):
        def __init__(self, folder: str) -> None:
            self._found = scandir(folder)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return (listed.append(entry.name) or entry for entry in self._found)  # type: ignore[func-returns-value]

        def __exit__(self, *_: object) -> None:
            self._found.close()

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", Scan)
    with pytest.raises(ValueError, match=r"it has more than 100 files, links and directories"):
        read_directory(tmp_path, BundleLimits(entries=100))
    assert read == [] and 102 < len(listed) <= 2 * 103  # for the permissions of all, and for the bundle


def test_a_task_of_as_many_files_as_are_allowed_is_read_next_to_its_repository(tmp_path: Path) -> None:
    Task.from_files(BASE).write(tmp_path)
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    assert len(read_directory(tmp_path, BundleLimits(entries=3)).files) == 3
    with pytest.raises(ValueError, match="it has more than 2 files"):
        read_directory(tmp_path, BundleLimits(entries=2))


def test_a_refused_task_leaves_no_files_in_memory(tmp_path: Path) -> None:
    shared: Shared = {}
    Task.from_files({**BASE, "tests/data": b"of both"}).write(tmp_path / "taken")
    Task.from_files({**BASE, "tests/data": b"of both", "tests/own": b"own"}).write(tmp_path / "refused")
    (tmp_path / "refused" / "instruction.md").write_text("")
    with pytest.raises(ValueError, match=r"instruction\.md"):
        load(tmp_path / "refused", shared=shared)
    assert shared == {}
    taken = load(tmp_path / "taken", shared=shared)
    assert len(shared) == len(taken.files)
    again = load(tmp_path / "taken", shared=shared)
    assert again.files["tests/data"] is taken.files["tests/data"]
