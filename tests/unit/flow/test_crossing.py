"""What crosses to verification, there and back."""

from dataclasses import replace

import pytest

from orchestrator.flow.crossing import LIMITS, TOTAL_BYTES, answer_bytes, applied, excess, graded, packed
from orchestrator.tasks.environment import Environment
from sandboxes.base import Artifacts, File, Limits, RefusedReason
from sandboxes.bubblewrap import BubblewrapProvider


def changed(
    added: dict[str, File] | None = None,
    modified: dict[str, File] | None = None,
    deleted: tuple[str, ...] = (),
    refused: tuple[tuple[str, RefusedReason], ...] = (),
) -> Artifacts:
    return Artifacts(added or {}, modified or {}, deleted, refused, not refused)


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
    assert applied(environment, packed(difference)) == {
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
        {f"/app/{place}": File(b"") for place in places}, ("/app/sub", "/app/sub/deep"), work_dir="/app/sub/deep"
    )  # fmt: skip
    provider = BubblewrapProvider()
    async with provider.open(environment.spec(environment.files, Limits())) as box:
        assert (await box.exec(["sh", "-c", agent], cwd="/app")).ok
        changed = await box.changed(LIMITS)
    pristine = graded(environment, packed(changed))
    async with provider.open(pristine.spec(pristine.files, Limits())) as box:
        seen = await box.exec(["sh", "-c", "cd /app; find * -type f ! -path '*cache__/*' | LC_ALL=C sort"])
        assert seen.stdout.decode().split() == found.split(), seen


def test_links_stay_behind_silently_and_whatever_is_too_much_is_named() -> None:
    assert (
        excess(changed(refused=(("link", RefusedReason.LINK), ("pipe", RefusedReason.SPECIAL))), "x") is None
    )
    assert excess(changed(refused=(("big", RefusedReason.TOO_LARGE),)), None) == (
        "artifacts: big is larger than the limit for one file"
    )
    hidden = replace(changed(), counts={RefusedReason.LINK: 100, RefusedReason.TOO_LARGE: 1})
    assert excess(hidden, None) == (
        "artifacts: one of 101 files that stay behind is larger than the limit for one file"
    )
    almost = changed({"a": File(bytes(TOTAL_BYTES - 10))})
    assert excess(almost, None) is None and "bytes, more than" in str(excess(almost, "x" * 9))
    many = changed({str(i): File(b"") for i in range(LIMITS.files)}, deleted=("one more",))
    assert excess(many, None) == "artifacts: more than 500 files differ"


def test_an_answer_counts_as_it_is_written_in_the_message() -> None:
    assert answer_bytes(None) == 0 and answer_bytes("ab") == 4 and answer_bytes("\n" * 10) == 22
