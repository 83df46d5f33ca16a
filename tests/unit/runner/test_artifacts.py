"""The artifacts for verification, there and back."""

from dataclasses import replace

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifacts import (
    INLINE_BYTES,
    MAX_BEHIND,
    answer_bytes,
    is_note,
    limits_of,
    noted,
    over_limit,
    packed,
    stayed_behind,
    too_much_together,
    with_artifacts,
)
from orchestrator.tasks.environment import Environment
from sandboxes.artifacts import stays
from sandboxes.base import Artifacts, File, Limits, RefusedReason
from sandboxes.bubblewrap import BubblewrapProvider

LIMITS = limits_of(SandboxSection())


def changed(
    added: dict[str, File] | None = None,
    modified: dict[str, File] | None = None,
    deleted: tuple[str, ...] = (),
    refused: tuple[tuple[str, RefusedReason], ...] = (),
) -> Artifacts:
    return Artifacts(
        added=added or {}, modified=modified or {}, deleted=deleted, refused=refused, complete=not refused
    )


def test_the_difference_turns_the_pristine_environment_into_what_the_agent_left() -> None:
    bodies = {
        "/app/kept": b"1",
        "/app/changed": b"2",
        "/app/gone": b"3",
        "/app/was/file": b"4",
        "/tmp/gone": b"6",
    }
    environment = {path: File(body) for path, body in bodies.items()}
    difference = changed(
        {"new/tool": File(b"\x00\xff", 0o755), "was": File(b"now a file")},
        {"changed": File(b"5", 0o2644)},
        ("gone", "was/file"),
    )
    assert with_artifacts(Environment(files=environment), packed(difference)).files == {
        "/app/kept": File(b"1"),
        "/app/changed": File(b"5", 0o644),
        "/app/new/tool": File(b"\x00\xff", 0o755),
        "/app/was": File(b"now a file"),
        "/tmp/gone": File(b"6"),
    }


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("agent", "found"),
    [
        ("rm file; mkdir file; echo 1 >file/in", "file/in sub/deep/a tree/a"),
        ("rm file; mkdir file", "sub/deep/a tree/a"),
        ("rm -r tree; echo 1 >tree", "file sub/deep/a tree"),
        ("rm -r tree; mkdir -p tree/a; echo 1 >tree/a/b", "file sub/deep/a tree/a/b"),
        ("rm -r sub; echo 1 >sub", "file sub tree/a"),
        ("rm -r sub/deep; echo 1 >sub/deep", "file sub/deep tree/a"),
        ("rm -r sub __pycache__; echo 1 >__pycache__", "__pycache__ file tree/a"),
    ],
)
async def test_a_file_in_place_of_a_directory_and_the_other_way_round_is_graded_as_what_it_is(
    agent: str, found: str
) -> None:
    places = ("file", "tree/a", "sub/deep/a", "__pycache__/a")
    environment = Environment(
        files={f"/app/{place}": File(b"") for place in places},
        directories=("/app/sub", "/app/sub/deep"),
        work_dir="/app/sub/deep",
    )
    provider = BubblewrapProvider()
    async with provider.open(environment.spec(environment.files, Limits())) as sandbox:
        assert (await sandbox.exec(["sh", "-c", agent], cwd="/app")).ok
        changed = await sandbox.changed(LIMITS)
    pristine = with_artifacts(environment, packed(changed))
    async with provider.open(pristine.spec(pristine.files, Limits())) as sandbox:
        seen = await sandbox.exec(
            ["sh", "-c", "cd /app; find * -type f ! -path '*cache__/*' | LC_ALL=C sort"]
        )
        assert seen.stdout.decode().split() == found.split(), seen


def test_what_stays_behind_and_whatever_is_too_much_is_named() -> None:
    pipe = changed(
        refused=(("out", RefusedReason.OUTSIDE), ("pipe", RefusedReason.SPECIAL)), deleted=("pipe",)
    )
    assert over_limit(pipe, "x", LIMITS) is None
    assert [(file.path, file.body, file.kind) for file in packed(pipe)] == [
        ("out", None, "behind"),
        ("pipe", None, "behind"),
    ]
    assert stayed_behind(packed(pipe)) == (
        "'out' is a symbolic link that may lead out of the work directory and did not reach the tests, nor did 1 others"
    )
    assert stayed_behind(packed(changed({"a": File(b"")}))) is None
    assert with_artifacts(Environment(files={"/app/pipe": File(b"before")}), packed(pipe)).files == {}
    assert over_limit(changed(refused=(("big", RefusedReason.TOO_LARGE),)), None, LIMITS) == (
        "artifacts: big is larger than the limit for one file"
    )
    hidden = replace(changed(), counts={RefusedReason.LINK: 100, RefusedReason.TOO_LARGE: 1})
    assert over_limit(hidden, None, LIMITS) == (
        "artifacts: one of 101 files that stay behind is larger than the limit for one file"
    )
    small = replace(LIMITS, total_bytes=1000, files=20)
    assert over_limit(changed({"a": File(bytes(1000))}), None, small) is None
    assert over_limit(changed({"a": File(bytes(1001))}), None, small) == (
        "artifacts: 1,001 bytes, more than 1,000 (sandbox.artifact_mb)"
    )
    many = changed({str(i): File(b"") for i in range(20)}, deleted=("one more",))
    assert over_limit(many, None, small) == "artifacts: more than 20 files differ (sandbox.artifact_files)"
    assert str(over_limit(changed(), "x" * INLINE_BYTES, small)).startswith("the answer has 400,002 bytes")


PIPE = RefusedReason.SPECIAL
LONG = f"{'d' * 199}/" * 6


@pytest.mark.parametrize(
    ("refused", "count", "others"),
    [
        ([f"f{i:03}" for i in range(100)], 5_000, ", nor did 4,999 others"),
        ([f"f{i:03}" for i in range(21)], 21, ", nor did 20 others"),
        ([f"{LONG}{i}" for i in range(5)], 5, ", nor did 4 others"),
        ([f"{LONG}{i}" for i in range(100)], 5_000, ", nor did 4,999 others"),
        (["\u2028"] * 1 + [f"\u2028{i}" for i in range(40)], 41, ", nor did 40 others"),
        (["one"], 1, ""),
    ],
)
def test_all_entries_that_stay_behind_are_counted(refused: list[str], count: int, others: str) -> None:
    left = replace(changed(refused=tuple((path, PIPE) for path in refused)), counts={PIPE: count})
    found = packed(left)
    assert len(found) == min(count, MAX_BEHIND + 1)
    sentence = str(stayed_behind(found))
    assert sentence.startswith(repr(refused[0])[:150]) and sentence.endswith(
        f"did not reach the tests{others}"
    )
    assert over_limit(left, None, replace(LIMITS, files=len(found))) is None
    assert over_limit(left, None, replace(LIMITS, files=len(found) - 1)) is not None
    pristine = Environment(files={"/app/…": File(b"before")})
    assert with_artifacts(pristine, found).files == pristine.files


@pytest.mark.anyio
async def test_what_a_file_crosses_without_is_named_and_changes_nothing_else() -> None:
    environment = Environment(files={f"/app/{path}": File(b"1") for path in ("same", "noted (sticky bit)")})
    agent = """
import os
for n in range(7):
    open(f"f{n}", "w").close()
    os.setxattr(f"f{n}", "user.origin", b"x")
os.link("f0", "g")
os.setxattr("same", "user.origin", b"x")
os.mkdir("noted")
os.chmod("noted", 0o1755)
"""
    provider = BubblewrapProvider()
    async with provider.open(environment.spec(environment.files, Limits())) as sandbox:
        assert (await sandbox.exec(["python3", "-Ic", agent], cwd="/app")).ok
        changed = await sandbox.changed(LIMITS)
    found = packed(changed)
    assert over_limit(changed, None, replace(LIMITS, files=9)) is None
    assert too_much_together(found, replace(LIMITS, files=9)) is None
    assert {noted(file) for file in found if is_note(file)} == {"f0", "f1", "f2", "f3", "f4", "g", "noted"}
    assert stayed_behind(found) == (
        "'f0 (extended attributes)' crosses to the tests without it, one of 9; 'g (hard link)' crosses to the tests without it; "
        "'noted (sticky bit)' crosses to the tests without it"
    )
    pristine = with_artifacts(environment, found)
    assert {"/app/same", "/app/noted (sticky bit)", "/app/f0", "/app/g"} <= pristine.files.keys()
    assert not pristine.without


def test_an_answer_counts_as_it_is_written_in_the_message() -> None:
    assert answer_bytes(None) == 0 and answer_bytes("ab") == 4 and answer_bytes("\n" * 10) == 22


WORK = """
mkdir -p release-2/bin empty/deep shut; echo 2 > release-2/app; ln -s release-2 current; ln -s ../release-2/app empty/up
echo k > key.pem; chmod 600 key.pem kept; chmod 700 shut; rm -r was; ln -s kept was; ln -sf release-2/app placed
"""
SEEN = """
readlink current empty/up was placed; cat current/app; stat -c '%a %F' key.pem kept shut empty/deep release-2/bin was; ls -A
"""


@pytest.mark.anyio
async def test_links_empty_directories_and_permissions_are_for_the_tests_what_the_agent_left() -> None:
    environment = Environment(files={f"/app/{path}": File(b"1") for path in ("kept", "was/file", "placed")})
    provider = BubblewrapProvider()
    async with provider.open(environment.spec(environment.files, Limits())) as sandbox:
        assert (await sandbox.exec(["sh", "-c", WORK])).ok
        made = await sandbox.exec(["sh", "-c", SEEN])
        changed = await sandbox.changed(LIMITS)
    assert changed.complete and over_limit(changed, None, LIMITS) is None
    pristine = with_artifacts(environment, packed(changed))
    async with provider.open(pristine.spec(pristine.files, Limits())) as sandbox:
        found = await sandbox.exec(["sh", "-c", SEEN])
    assert (found.stdout, found.stderr) == (made.stdout, made.stderr)
    assert b"release-2" in made.stdout and b"600" in made.stdout


@pytest.mark.parametrize(
    ("path", "target", "ok"),
    [
        ("a", "b", True), ("a", "./b/", True), ("d/a", "../b", True), ("a", "/app", True), ("a", "/app/b", True), ("a", ".", True),
        ("a", "/usr/bin/python3", True), ("a", "/bin/sh", True), ("a", "gone", True),
        ("a", "..", False), ("a", "../app/b", False), ("d/a", "../../b", False), ("a", "b/../c", False), ("a", "b/../../c", False),
        ("a", "/app/../logs/verifier/reward.txt", False), ("a", "/usr/../tests/test.sh", False), ("a", "/", False), ("a", "/tests", False),
        ("a", "/logs/verifier/reward.txt", False), ("a", "/application", False), ("a", "/tmp/x", False), ("a", "/home/agent/want", False),
        ("a", "/proc/self/root/tests", False), ("a", "/dev/shm/want", False), ("a", "/etc/passwd", False), ("a", "//tests/x", False),
        ("a", "", False), ("a", "b" * 5000, False), ("a", "\udcff", False),
    ],
)  # fmt: skip
def test_only_links_that_cannot_leave_the_work_directory_cross(path: str, target: str, ok: bool) -> None:
    assert stays(path, target) is ok
