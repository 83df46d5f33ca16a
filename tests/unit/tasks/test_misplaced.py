"""Files of a task that have a name of the format and lie where nothing reads them."""

import re
from pathlib import Path

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sources import each

FILES = {
    "task.toml": b"",
    "instruction.md": b"do it",
    "tests/test.sh": b"mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
}
STEPS = {
    "task.toml": b"[[steps]]\nname = 'one'",
    "steps/one/instruction.md": b"do it",
    "tests/test.sh": FILES["tests/test.sh"],
}
SEPARATE = b'[verifier]\nenvironment_mode = "separate"'


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("Dockerfile", "Dockerfile is not read: it lies at the top of the task, and Penstock reads environment/Dockerfile: move it there"),
        ("dockerfile", "and Penstock reads environment/Dockerfile"),
        (".dockerignore", "and Penstock reads environment/.dockerignore"),
        ("Dockerfile.dockerignore", "and Penstock reads environment/Dockerfile.dockerignore"),
        ("docker-compose.yaml", "and Penstock reads environment/docker-compose.yaml"),
        ("compose.yml", "and Penstock reads environment/docker-compose.yaml"),
        ("task.yaml", "tasks of the older form (task.yaml), which is not read: penstock tasks import terminal-bench FOLDER"),
        ("run-tests.sh", "run-tests.sh is not read: it lies at the top of the task, and Penstock reads tests/test.sh"),
        ("test.sh", "and Penstock reads tests/test.sh"),
        ("solution.sh", "and Penstock reads solution/solve.sh"),
        ("solve.sh", "and Penstock reads solution/solve.sh"),
        ("solution.yaml", "and Penstock reads solution/solve.sh"),
        ("Instruction.md", "and Penstock reads instruction.md"),
        ("instructions.md", "and Penstock reads instruction.md"),
        ("Task.toml", "and Penstock reads task.toml"),
        ("test/test.sh", "test/ is not read: move its files to tests/"),
        ("Tests/test.sh", "Tests/ is not read: move its files to tests/"),
        ("solutions/solve.sh", "solutions/ is not read: move its files to solution/"),
        ("env/Dockerfile", "env/ is not read: move its files to environment/"),
        ("Environment/files/a", "Environment/ is not read: move its files to environment/"),
        ("verifier/Dockerfile", "verifier/ is not read: move its files to tests/"),
        ("files/a", "files/ is not read: move its files to environment/files/"),
        ("skills/a/SKILL.md", "skills/ is not read: move its files to environment/files/ and name the place in [environment].skills_dir"),
        ("other/task.toml", "other/task.toml is not read, a task lies in a folder of its own"),
        ("solution/solution.sh", "solution/solution.sh is not run: name it solution/solve.sh"),
        ("solution/Solve.sh", "solution/Solve.sh is not run: name it solution/solve.sh"),
        ("tests/.harborignore", "tests/.harborignore is not read"),
        ("tests/Dockerfile", 'tests/Dockerfile is not read: write environment_mode = "separate" below [verifier]'),
    ],
)  # fmt: skip
def test_a_misplaced_file_is_refused_with_the_place_that_is_read(path: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(Task.from_files(FILES | {path: b"x"}), SandboxSection())


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (
            "steps/one/Dockerfile",
            "it lies at the top of steps/one, and Penstock reads environment/Dockerfile",
        ),
        ("steps/one/test.sh", "and Penstock reads steps/one/tests/test.sh"),
        (
            "steps/one/solutions/solve.sh",
            "steps/one/solutions/ is not read: move its files to steps/one/solution/",
        ),
        ("steps/one/files/a", "steps/one/files/ is not read: move its files to steps/one/workdir/"),
        ("steps/one/task.toml", "and Penstock reads task.toml"),
        ("steps/one/tests/Dockerfile", "steps/one/tests/Dockerfile is not read: write environment_mode"),
        ("step/one/instruction.md", "step/ is not read: move its files to steps/"),
        ("workdir/a", "workdir/ is not read: move its files to environment/files/"),
    ],
)
def test_a_misplaced_file_of_a_step_is_refused_in_the_same_way(path: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(Task.from_files(STEPS | {path: b"x"}), SandboxSection())


@pytest.mark.parametrize(
    "path",
    [
        "README.md", "LICENSE", "NOTICE", ".gitignore", ".gitattributes", "metadata.json", "notes/design.md", "data/rows.csv",
        "evidence/oracle/result.json", "cheat/solve.sh", "solution/files/solution.sh", "tests/data/task.toml", "tests/Dockerfile.old",
        "environment/files/Dockerfile", "environment/files/task.toml", "environment/files/tests/test.sh", "record/script.json",
        "environment/.gitkeep", "environment/.DS_Store", "environment/README.md", "environment/.gitignore",
    ],
)  # fmt: skip
def test_an_authors_own_file_is_carried(path: str) -> None:
    solved = FILES | {"solution/solve.sh": b"echo done"}
    check_admissible(Task.from_files(solved | {path: b"x"}), SandboxSection())


@pytest.mark.parametrize("path", ["environment/notes.md", "environment/data/README.md", "environment/.env"])
def test_other_files_that_no_environment_places_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(path)} is placed nowhere: "):
        Task.from_files(FILES | {path: b"x"})


def test_files_of_the_format_stay_where_steps_and_separate_tests_read_them() -> None:
    more = {
        f"steps/one/{path}": b"true"
        for path in ("workdir/task.toml", "solution/solve.sh", "tests/Dockerfile.old")
    }
    check_admissible(Task.from_files(STEPS | more), SandboxSection())
    own = {"task.toml": SEPARATE, "tests/Dockerfile": b"FROM debian:12"}
    check_admissible(Task.from_files(FILES | own), SandboxSection())
    stepped = {"task.toml": STEPS["task.toml"] + b"\n[steps.verifier]\nenvironment_mode = 'separate'"}
    check_admissible(
        Task.from_files(STEPS | stepped | {"tests/Dockerfile": b"FROM debian:12"}), SandboxSection()
    )


def test_a_task_that_a_run_has_accepted_stays_readable() -> None:
    assert "Dockerfile" in Task.of(Bundle.of(FILES | {"Dockerfile": b"x"}), accepted=True).files


def test_a_folder_of_tasks_of_the_older_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.yaml").write_text("instruction: do it")
    (tmp_path / "deep" / "sets" / "two").mkdir(parents=True)
    (tmp_path / "deep" / "sets" / "two" / "task.yaml").write_text("instruction: do it")
    for place in (tmp_path, tmp_path / "one", tmp_path / "deep"):
        with pytest.raises(ValueError, match="penstock tasks import terminal-bench"):
            list(each([place]))


def test_a_folder_holds_tasks_at_any_depth_but_none_in_a_task_and_in_hidden_folders(tmp_path: Path) -> None:
    held = ("b", "a/easy/one", "a/hard/two", "a/three", ".seen")
    passed_over = ("b/environment/files/inner", "a/three/tests/old", ".git/four", "linked/five")
    for place in (*held, *passed_over):
        (tmp_path / "set" / place).mkdir(parents=True)
    (tmp_path / "set/linked").rename(tmp_path / "elsewhere")
    (tmp_path / "set/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/six").symlink_to(tmp_path / "elsewhere/five")
    (tmp_path / "set/notes/deep").mkdir(parents=True)
    for place in (*held, *passed_over):
        (tmp_path / "set" / place / "task.toml").write_text("")
    found = [Path(place).relative_to(tmp_path / "set").as_posix() for place, _ in each([tmp_path / "set"])]
    assert found == sorted((*held, "six"))
