"""Reading, checking and packing task directories."""

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tasks.harbor import Task, load, without_canary
from orchestrator.tasks.message import MAX_MESSAGE_BYTES, needs_blobs
from sandboxes.base import File
from tests.unit.tasks.task_lines import iter_jsonl

MINIMAL = {
    "task.toml": b"",
    "instruction.md": b"say hello\n",
    "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt\n",
}
FULL = MINIMAL | {
    "task.toml": b'[metadata]\nname = "greet"\ndomain = "agent"\n',
    "environment/files/a/b.txt": b"b\n",
    "environment/files/raw.bin": b"\xff\x00\xfe",
    "tests/data/want.txt": b"hello\n",
    "solution/solve.sh": b"echo hello\n",
}


def test_a_task_gives_each_reader_only_its_own_files() -> None:
    task = Task.from_files(FULL)
    assert task.name == "greet"
    assert task.instruction == "say hello"
    assert task.environment(None).files == {
        "/app/a/b.txt": File(b"b\n"),
        "/app/raw.bin": File(b"\xff\x00\xfe"),
    }
    assert task.tests_files() == {"test.sh": File(FULL["tests/test.sh"]), "data/want.txt": File(b"hello\n")}
    assert task.solution == "echo hello\n"
    assert Task.from_files(MINIMAL).solution is None


def test_directory_message_and_json_lines_hold_the_same_task(tmp_path: Path) -> None:
    task = Task.from_files(FULL)
    task.write(tmp_path / "greet")
    message = json.loads(json.dumps(task.to_message()))
    (tmp_path / "tasks.jsonl").write_text(f"\n{json.dumps(message)}\n")
    for copy in (load(tmp_path / "greet"), Task.from_message(message), *iter_jsonl(tmp_path / "tasks.jsonl")):
        assert copy == task
        assert copy.content_hash == task.content_hash
    assert set(message["files_b64"]) == {"environment/files/raw.bin"}


def test_the_content_hash_depends_on_paths_and_contents_and_not_on_their_order() -> None:
    hashes = {
        Task.from_files(files).content_hash
        for files in (
            MINIMAL,
            MINIMAL | {"README.md": b"a"},
            MINIMAL | {"README.md": b"b"},
            MINIMAL | {"README.mda": b""},
        )
    }
    assert len(hashes) == 4
    assert Task.from_files(dict(reversed(FULL.items()))).content_hash == Task.from_files(FULL).content_hash


def test_a_task_without_a_name_is_named_after_its_content() -> None:
    task = Task.from_files(MINIMAL)
    assert task.name == f"task-{task.content_hash[:12]}"


def test_writing_over_an_existing_file_is_refused(tmp_path: Path) -> None:
    Task.from_files(MINIMAL).write(tmp_path)
    with pytest.raises(FileExistsError):
        Task.from_files(MINIMAL).write(tmp_path)


@pytest.mark.parametrize("missing", sorted(MINIMAL))
def test_a_task_without_settings_instruction_or_tests_is_rejected_by_name(missing: str) -> None:
    files = {path: body for path, body in FULL.items() if path != missing}
    with pytest.raises(ValueError, match=f"^{re.escape(missing)} is missing: "):
        Task.from_files(files)


def test_a_test_script_that_an_image_brings_is_to_be_moved_to_its_place() -> None:
    files = {path: body for path, body in MINIMAL.items() if path != "tests/test.sh"}
    files |= {"tests/Dockerfile": b"FROM debian:12\nCOPY own/ /tests/\n", "tests/own/test.sh": b"exit 0"}
    with pytest.raises(
        ValueError, match=r"^tests/test\.sh is missing: .* not one that an image brings: move"
    ):
        Task.from_files(files)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"instruction.md": b" \n"}, "instruction.md is empty: "),
        ({"instruction.md": b"\xff"}, r"instruction.md is not UTF-8 text \(byte 0\)"),
        ({"tests/test.sh": b""}, "tests/test.sh is empty: "),
        ({"environment/compose.yaml": b"x"}, "environment/compose.yaml is placed nowhere: "),
        ({"tests": b"x"}, "tests: a task cannot have both this file and tests/"),
        ({"../evil": b"x"}, "'../evil' is not a plain relative path"),
        ({"/etc/passwd": b"x"}, "'/etc/passwd' is not a plain relative path"),
        ({"tests//x": b"x"}, "'tests//x' is not a plain relative path"),
        ({"environment/files/./x": b"x"}, "'environment/files/./x' is not a plain relative path"),
        ({"a\\b": b"x"}, "is not a plain relative path"),
        ({"a\nb": b"x"}, "is not a plain relative path"),
        ({"a\ud800": b"x"}, "is not a plain relative path"),
        (
            {"environment/files/data": b"PACK\0\0\0\2..."},
            "environment/files/data: the objects of this git repository cannot be searched for the answer, which are cut off: pack it again",
        ),
        (
            {"environment/files/data": b"# v2 git bundle\n"},
            "cannot be searched for the answer, which are no pack of version 2 or 3",
        ),
        (
            {
                f"environment/files/.git/objects/ab/{'c' * 38}": zlib.compress(
                    b"blob 34\0" + MINIMAL["tests/test.sh"]
                )
            },
            "holds the whole text of tests/test.sh in an object of a git repository, which the agent must not see: begin a history",
        ),
        (
            {"environment/files/notes": b"see:\n" + MINIMAL["tests/test.sh"]},
            "environment/files/notes holds the whole text of tests/test.sh, which the agent must not see",
        ),
        (
            {
                "solution/answer.txt": b"the answer is 42, of course\n",
                "environment/files/x": b"the answer is 42, of course",
            },
            "environment/files/x holds the whole text of solution/answer.txt",
        ),
        ({"task.toml": b"[agent]\ntimeout_sec = 'x'"}, r"task.toml: \[agent\].timeout_sec must be a number"),
    ],
)
def test_each_flaw_of_a_directory_is_one_sentence_that_names_the_file(
    changes: dict[str, bytes], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        Task.from_files(MINIMAL | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ([], 'a task must be an object with "files", got list'),
        ({"files": [], "x": 1}, 'a task has only "files", "files_b64", .* and "trees", got \'x\''),
        ({"files": []}, '"files" must be an object of path to content, got list'),
        ({"files": {"task.toml": 3}}, '"files" must hold text under each path, got 3 at task.toml'),
        ({"files": {"a": "x"}, "files_b64": {"a": "eA=="}}, 'a is in both "files" and "files_b64"'),
        ({"files_b64": {"a": "?"}}, "a is not valid base64: "),
        ({"files": {"a": "\ud800"}}, r"a is not valid Unicode text \(character 0\)"),
        ({"files": {"a\x1b[2J\nb": None}}, r"'a\\x1b\[2J\\nb' is not a plain relative path"),
        ({"files": {"a\nb": ""}, "files_b64": {"a\nb": ""}}, r"'a\\nb' is not a plain relative path"),
        ({}, "task.toml is missing: "),
    ],
)
def test_each_flaw_of_a_message_is_one_sentence(message: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        Task.from_message(message)


def test_a_task_larger_than_a_message_is_packed_into_blobs_and_refused_in_one_message() -> None:
    task = Task.from_files(MINIMAL | {"environment/files/big": b"\xff" * (MAX_MESSAGE_BYTES * 3 // 4)})
    message = task.to_message()
    assert needs_blobs(message) and len(json.dumps(message)) < 2000
    with pytest.raises(ValueError, match="its files lie in blobs"):
        Task.from_message(message)
    text = {path: body.decode() for path, body in MINIMAL.items()} | {"big": "x" * MAX_MESSAGE_BYTES}
    with pytest.raises(
        ValueError, match="it has 513 KB in one message, which may have 512 KB: publish its files as blobs"
    ):
        Task.from_message({"files": text})


def test_links_out_of_a_folder_are_refused_and_not_followed(tmp_path: Path) -> None:
    def links_a_file(task: Path) -> str:
        (task / "notes.txt").symlink_to("/etc/hostname")
        return "notes.txt"

    def links_a_folder(task: Path) -> str:
        (task / "environment").symlink_to("/etc")
        return "environment"

    plant: Callable[[Path], str]
    for number, plant in enumerate((links_a_file, links_a_folder)):
        task = tmp_path / str(number)
        Task.from_files(MINIMAL).write(task)
        name = plant(task)
        with pytest.raises(
            ValueError, match=f"{task}: {name} is a link that does not lead to a file of its folder"
        ):
            load(task)


def test_errors_from_disk_name_the_directory_or_the_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent is not a task directory"):
        load(tmp_path / "absent")
    with pytest.raises(ValueError, match=rf"{tmp_path}: task.toml is missing"):
        load(tmp_path)
    lines = tmp_path / "tasks.jsonl"
    lines.write_text(json.dumps(Task.from_files(MINIMAL).to_message()) + "\n{]\n")
    tasks = iter_jsonl(lines)
    assert next(tasks).instruction == "say hello"
    with pytest.raises(ValueError, match=rf"{lines} line 2: Expecting property name"):
        next(tasks)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("<!-- harbor-canary GUID 1-2 -->\n\nDo it.\n", "Do it."),
        ("# a-bench Canary GUID 1-2\n<!-- canary -->\n\n# Task\nDo it.", "# Task\nDo it."),
        ("# Birds\nFind the canary.", "# Birds\nFind the canary."),
        ("Do it.\n<!-- canary -->", "Do it.\n<!-- canary -->"),
    ],
)
def test_no_agent_sees_the_canary_lines_at_the_top_of_an_instruction(written: str, read: str) -> None:
    assert without_canary(written) == read
    assert Task.from_files(MINIMAL | {"instruction.md": written.encode()}).instruction == read


def test_an_instruction_of_canary_lines_alone_is_empty() -> None:
    with pytest.raises(ValueError, match=r"instruction\.md is empty: write what the agent is to do"):
        Task.from_files(MINIMAL | {"instruction.md": b"<!-- canary GUID 1 -->\n"})
