"""Tasks as Windows and its editors save them: texts and scripts are taken for what they are, other files keep their bytes."""

import codecs
import json
import subprocess
from pathlib import Path

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task, load
from sandboxes.images import recipe
from tests.unit.tasks.task_lines import iter_jsonl

SCRIPT = b'#!/bin/bash\nset -e\ncd "$(dirname "$0")"\n./check.sh\n'
PLAIN = {
    "task.toml": b"[metadata]\nname = 'a'\n",
    "instruction.md": b"do it\nnow\n",
    "tests/test.sh": SCRIPT,
    "tests/check.sh": b"#!/bin/sh\necho checked\n",
    "solution/solve.sh": b"echo solved\n",
    "environment/Dockerfile": b"FROM debian:12\nENV A=1\nCOPY data.txt /app/\n",
    "environment/data.txt": b"keeps\r\nits bytes\r\n",
}
TEXTS = [path for path in PLAIN if path != "environment/data.txt"]


def of_windows(body: bytes) -> bytes:
    return codecs.BOM_UTF8 + body.replace(b"\n", b"\r\n")


def test_a_task_of_windows_is_the_task_of_unix(tmp_path: Path) -> None:
    task = Task.from_files(
        {path: of_windows(PLAIN[path]) if path in TEXTS else PLAIN[path] for path in PLAIN}
    )
    plain = Task.from_files(PLAIN)
    check_admissible(task, SandboxSection())
    assert task.instruction == plain.instruction == "do it\nnow"
    assert (task.name, task.solution) == ("a", "echo solved\n")
    assert task.environment(None).env == plain.environment(None).env == {"A": "1"}
    assert task.files["environment/data.txt"].data == PLAIN["environment/data.txt"]
    assert task.tests_files() == plain.tests_files()
    task.write(tmp_path / "a")
    (tmp_path / "tasks.jsonl").write_bytes(codecs.BOM_UTF8 + json.dumps(task.to_message()).encode() + b"\r\n")
    assert load(tmp_path / "a").tests_files() == plain.tests_files()
    assert [each.name for each in iter_jsonl(tmp_path / "tasks.jsonl")] == ["a"]


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_tests_of_a_task_run_whatever_editor_saved_them(tmp_path: Path, mark: bytes, end: bytes) -> None:
    files = {path: mark + PLAIN[path].replace(b"\n", end) for path in ("tests/test.sh", "tests/check.sh")}
    task = Task.from_files({**PLAIN, **files})
    for path, file in task.tests_files().items():
        (tmp_path / path).write_bytes(file.data)
        (tmp_path / path).chmod(file.mode)
    done = subprocess.run(["bash", tmp_path / "test.sh"], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"checked\n", b"")


def started(task: Task, where: Path) -> bytes:
    """The output of `tests/test.sh`, and of its shell about it."""
    for path, file in task.tests_files().items():
        (where / path).parent.mkdir(exist_ok=True)
        (where / path).write_bytes(file.data)
        (where / path).chmod(file.mode)
    done = subprocess.run(["bash", where / "test.sh"], capture_output=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("first", [b"#!/bin/bash\n", b"# a comment\n"])
def test_scripts_of_mixed_line_ends_run(tmp_path: Path, first: bytes) -> None:
    script = first + of_windows(b'cd "$(dirname "$0")"\n./check.sh\n').removeprefix(codecs.BOM_UTF8)
    check = b"#!/bin/sh\n" + b"echo checked\r\n"
    task = Task.from_files({**PLAIN, "tests/test.sh": script, "tests/check.sh": check})
    assert started(task, tmp_path) == b"checked\n"
    assert (
        b"\r" not in Task.from_files({**PLAIN, "solution/solve.sh": script}).files["solution/solve.sh"].data
    )


@pytest.mark.parametrize(
    "command",
    [
        "bash h.sh",
        ". ./h.sh",
        'source "$(dirname "$0")/lib/h.sh"',
        "sh -e lib/h.sh",
        'x=$(bash "lib/h.sh"); echo $x',
    ],
)
def test_a_script_of_windows_without_a_first_line_runs_if_the_tests_run_it(
    tmp_path: Path, command: str
) -> None:
    helper = of_windows(b"echo checked\ntrue\n")
    files = {"tests/h.sh": helper, "tests/lib/h.sh": helper, "tests/data.sh": helper, "tests/fh.sh": helper}
    script = f'cd "$(dirname "$0")"\n{command}\n'.encode()
    task = Task.from_files({**PLAIN, **files, "tests/test.sh": script})
    assert started(task, tmp_path) == b"checked\n"
    kept = task.tests_files()
    assert kept["data.sh"].data == kept["fh.sh"].data == helper, "what no script runs may be data"
    assert task.files["tests/h.sh"].data == helper


def test_a_script_of_the_tests_in_another_encoding_may_be_data() -> None:
    body = "echo 1\n".encode("utf-16")
    task = Task.from_files({**PLAIN, "tests/test.sh": b"bash h.sh\n", "tests/h.sh": body})
    assert task.tests_files()["h.sh"].data == body


@pytest.mark.parametrize("path", ["tests/test.sh", "solution/solve.sh"])
@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"echo 1\recho 2\r", "ends its lines in CR alone"),
        (b"\0echo 1\n", "has a NUL byte in its first lines"),
    ],
)
def test_a_script_that_no_shell_reads_is_refused_by_name(path: str, body: bytes, wrong: str) -> None:
    task = Task.from_files({**PLAIN, path: body})
    with pytest.raises(ValueError, match=f"^task a: {path} {wrong}"):
        check_admissible(task, SandboxSection())


def test_the_texts_of_a_step_are_taken_in_the_same_way() -> None:
    several = {
        "task.toml": of_windows(b"[[steps]]\nname = 'one'\n"),
        "steps/one/instruction.md": of_windows(b"do it\n"),
        "steps/one/tests/test.sh": of_windows(SCRIPT),
    }
    task = Task.from_files(several)
    assert task.instruction == "do it" and task.files["steps/one/tests/test.sh"].data == SCRIPT


@pytest.mark.parametrize("path", TEXTS)
def test_another_encoding_is_refused_by_the_name_of_file_and_encoding(path: str) -> None:
    if path == "tests/check.sh":
        pytest.skip("it may be data of the tests")
    body = PLAIN[path].decode().encode("utf-16")
    with pytest.raises(ValueError, match=rf"^{path} is UTF-16 text: save it as UTF-8$"):
        Task.from_files({**PLAIN, path: body})


def test_a_dockerfile_that_is_built_alone_is_taken_in_the_same_way() -> None:
    lines, (stage,) = recipe.read(of_windows(PLAIN["environment/Dockerfile"]))
    assert lines == PLAIN["environment/Dockerfile"].decode().splitlines() and stage.image == "debian:12"
