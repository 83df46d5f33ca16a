"""`penstock tasks import swe`: rows of SWE-bench and its relatives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.tasks.harbor import Task, load
from orchestrator.tasks.importing import swe_rows
from orchestrator.tasks.importing.patch import Patch
from orchestrator.tasks.importing.swe_scripts import GRADE
from tests.import_sets import CALCULATOR, CHECK, FIX, TESTS, committed, git, row, rows, smith, write
from tests.unit.tasks.importing.rig import imported, judged, refused

NAME = "people__calculator-7"
BINARY = "diff --git a/a.bin b/a.bin\nnew file mode 100644\nindex 0000000..bdc955b\nBinary files /dev/null and b/a.bin differ\n"


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with the calculator's repository."""
    committed(write(tmp_path / "clones" / "people" / "calculator", CALCULATOR))
    return tmp_path / "clones"


@pytest.fixture
def commit(clones: Path) -> str:
    return git(clones / "people" / "calculator", "rev-parse", "HEAD")


def below(task: Task, folder: str) -> set[str]:
    return {path.removeprefix(folder) for path in task.files if path.startswith(folder)}


def test_a_row_with_an_image_names_it_and_carries_its_patches(tmp_path: Path) -> None:
    for column in ("image_name", "docker_image", "image"):
        source = rows(tmp_path / "rows.jsonl", row("1" * 40, **{column: "example.org/calc:7"}))
        found = imported("swe", source, tmp_path / column)
        assert (found.code, found.outcomes) == (0, {NAME: "imported"})
        assert "[environment].docker_image = 'example.org/calc:7'" in found.run[NAME], (
            "refused without images"
        )
    task = load(tmp_path / "image" / NAME)
    assert task.settings.environment == {"docker_image": "example.org/calc:7", "workdir": "/testbed"}
    assert task.instruction == "add() subtracts." and task.settings.metadata.domain == "coding"
    assert task.files["solution/fix.patch"].data.decode() == FIX
    assert task.files["tests/test.patch"].data.decode() == TESTS
    assert json.loads(task.files["tests/expected.json"].data) == [
        "test_calc.py::test_add",
        "test_calc.py::test_twice",
    ]
    assert below(task, "environment/") == set()
    given = json.loads(task.files["tests/base.json"].data)
    assert (given["commit"], given["old"], given["new"]) == ("1" * 40, ["test_calc.py"], [])
    assert "-m pytest" in task.files["tests/test.sh"].data.decode()


def test_the_image_may_follow_from_the_name(tmp_path: Path) -> None:
    source = rows(tmp_path / "rows.jsonl", row("1" * 40))
    found = imported("swe", source, tmp_path / "to", "--image", "example.org/{docker_id}:{instance_id}")
    assert "example.org/people_1776_calculator-7:people__calculator-7" in found.run[NAME]
    assert imported("swe", source, tmp_path / "none").reasons == {
        NAME: "it names no image (image_name, docker_image, image): give --image or --repositories"
    }


def test_files_of_a_repository_come_without_history_and_hidden_tests(
    tmp_path: Path, clones: Path, commit: str
) -> None:
    before = git(clones / "people" / "calculator", "status", "--porcelain")
    source = rows(
        tmp_path / "rows.jsonl", row(commit), row(commit, instance_id="again", test_cmd=["true", "pytest"])
    )
    found = imported("swe", source, tmp_path / "to", "--repositories", str(clones))
    assert (found.code, found.run) == (0, {})
    task = load(tmp_path / "to" / NAME)
    assert below(task, "environment/files/") == set(CALCULATOR)
    assert b"test_add" not in task.files["environment/files/test_calc.py"].data
    assert below(task, "tests/files/") == {"test_calc.py"}
    assert b"test_add" in task.files["tests/files/test_calc.py"].data
    assert "true\npytest test_calc.py" in load(tmp_path / "to" / "again").files["tests/test.sh"].data.decode()
    assert git(clones / "people" / "calculator", "status", "--porcelain") == before
    assert (
        imported("swe", source, tmp_path / "to", "--repositories", str(clones)).outcomes[NAME] == "unchanged"
    )


def a_patch_of_tests(repository: Path) -> str:
    """Adds an empty file, a binary one and names that git quotes or that have spaces; moves one, changes the mode and the type of others. The
    repository stays as it is."""
    git(repository, "mv", "data.txt", "data of tests.txt")
    (repository / "data of tests.txt").chmod(0o755)
    (repository / "kind").unlink()
    new: dict[str, str | bytes] = {
        "tests/p/__init__.py": "",
        "a b/__init__.py": "",
        "a.bin": b"\0\1",
        "café.py": "x = 1\n",
        "kind": "file\n",
    }
    write(
        repository, {**new, "test_calc.py": CALCULATOR["test_calc.py"] + "\x0c\ndef test_new():\n    pass\n"}
    )
    git(repository, "add", "-A")
    patch = subprocess.run(
        ["git", "diff", "--cached", "--binary", "--find-renames"],
        cwd=repository, check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    git(repository, "reset", "-q", "--hard")
    return patch


MADE = ("tests/p/__init__.py", "a b/__init__.py", "a.bin", "café.py", "data of tests.txt")


@pytest.fixture
def with_data(clones: Path) -> Path:
    """The calculator's repository with a file to move and a link."""
    repository = write(clones / "people" / "calculator", {"data.txt": "some data\n" * 20})
    (repository / "kind").symlink_to("README")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "data")
    return repository


def test_a_patch_tells_what_it_makes_from_what_it_finds(with_data: Path) -> None:
    found = Patch.of(a_patch_of_tests(with_data), "test_patch")
    assert set(found.paths) == {*MADE, "data.txt", "kind", "test_calc.py"}
    assert (set(found.new), set(found.gone)) == (set(MADE), {"data.txt"})
    (with_data / "a.bin").write_bytes(b"\0")
    git(with_data, "add", "-A")
    git(with_data, "commit", "-q", "-m", "binary")
    git(with_data, "rm", "-q", "a.bin")
    gone = Patch.of(git(with_data, "diff", "--cached", "--full-index"), "patch")
    assert (gone.paths, gone.new, *gone.gone) == (("a.bin",), (), "a.bin")


def test_files_that_the_agent_made_as_well_do_not_stand_in_the_way_of_the_hidden_tests(
    tmp_path: Path, with_data: Path
) -> None:
    patch = a_patch_of_tests(with_data)
    named = row(
        git(with_data, "rev-parse", "HEAD"), test_patch=patch, image="a:1", PASS_TO_PASS=[],
        FAIL_TO_PASS=["test_calc.py::test_new"],
    )  # fmt: skip
    source = rows(tmp_path / "rows.jsonl", named)
    assert imported("swe", source, tmp_path / "to", "--test-command", CHECK).code == 0
    write(with_data, {**dict.fromkeys(MADE, "the agent's own\n"), "data.txt": "changed\n"})
    (with_data / "kind").unlink()
    assert judged(tmp_path / "to" / NAME, with_data) == "1"
    assert (with_data / "tests/p/__init__.py").read_bytes() == b"" and (
        with_data / "café.py"
    ).read_text() == "x = 1\n"


def test_the_report_says_once_what_the_tests_leave_possible(tmp_path: Path) -> None:
    source = rows(
        tmp_path / "rows.jsonl", *(row("1" * 40, image="a:1", instance_id=name) for name in ("a", "b"))
    )
    done = CliRunner().invoke(app, ["tasks", "import", "swe", str(source), "--to", str(tmp_path / "to")])
    assert (
        " ".join(done.stdout.split()).count("2 tasks: the agent's modules run in the process of its tests")
        == 1
    )


def test_hidden_files_of_a_repository_are_whole_whatever_their_names(tmp_path: Path, with_data: Path) -> None:
    (with_data / "kind").unlink()
    (with_data / "kind").write_text("a file\n")
    git(with_data, "commit", "-q", "-am", "no links")
    patch = a_patch_of_tests(with_data)
    source = rows(tmp_path / "rows.jsonl", row(git(with_data, "rev-parse", "HEAD"), test_patch=patch))
    found = imported("swe", source, tmp_path / "to", "--repositories", str(with_data.parent.parent))
    assert found.code == 0, found.reasons
    made = load(tmp_path / "to" / NAME)
    assert below(made, "tests/files/") == {*MADE, "kind", "test_calc.py"}
    assert json.loads(made.files["tests/base.json"].data)["new"] == ["data.txt"]


def test_a_bare_repository_and_a_base_image_make_a_dockerfile(
    tmp_path: Path, clones: Path, commit: str
) -> None:
    git(clones, "clone", "-q", "--bare", "people/calculator", "bare/people__calculator.git")
    source = rows(tmp_path / "rows.jsonl", row(commit))
    found = imported(
        "swe",
        source,
        tmp_path / "to",
        "--repositories",
        str(clones / "bare"),
        "--base",
        "python:3.11",
        "--test-command",
        CHECK,
    )
    assert (found.code, found.run) == (0, {})
    task = load(tmp_path / "to" / NAME)
    assert task.files["environment/Dockerfile"].data.startswith(b"FROM python:3.11\n")
    assert "python3 check.py test_calc.py" in task.files["tests/test.sh"].data.decode()


def test_a_row_of_swe_smith_begins_with_its_fault_and_without_its_tests(
    tmp_path: Path, clones: Path, commit: str
) -> None:
    named = clones / "swesmith" / f"people__calculator.{commit[:8]}"
    named.parent.mkdir()
    (clones / "people" / "calculator").rename(named)
    source = rows(tmp_path / "rows.jsonl", smith(commit))
    assert (
        "its image is without it: give --repositories"
        in imported("swe", source, tmp_path / "no").reasons["smith-1"]
    )
    found = imported("swe", source, tmp_path / "to", "--repositories", str(clones))
    assert found.code == 0, found.reasons
    task = load(tmp_path / "to" / "smith-1")
    assert b"3 * a" in task.files["environment/files/calc.py"].data
    assert below(task, "environment/files/") == set(CALCULATOR) - {"test_calc.py"}
    assert below(task, "tests/files/") == {"test_calc.py"}
    fix = task.files["solution/fix.patch"].data.decode()
    assert "-    return 3 * a\n+    return 2 * a\n" in fix and "--- a/calc.py" in fix


def test_a_line_that_cannot_be_used_is_named_by_its_number_and_the_rest_goes_on(
    tmp_path: Path, clones: Path, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swe_rows, "MAX_LINE_BYTES", 20_000)
    outside = FIX.replace("a/calc.py b/calc.py", "a/../x b/../x")
    bad: list[tuple[dict[str, Any] | str, str]] = [
        ("{", "it is not JSON"),
        ("[7]", "it must be an object, got [7]"),
        (
            '{"repo": "a/b"}',
            "the columns patch, problem_statement, FAIL_TO_PASS, PASS_TO_PASS, base_commit, test_patch are missing",
        ),
        (row(commit, test_patch=None), "the columns test_patch are missing or empty"),
        (row(commit, patch=7), "patch must be text, got 7"),
        (row(commit, problem_statement=" \n"), "problem_statement is empty"),
        (row(commit, problem_statement="a\0"), "problem_statement holds a NUL character"),
        (
            row(commit, FAIL_TO_PASS="test_a"),
            "FAIL_TO_PASS must be a list of test names, or JSON of one, got 'test_a'",
        ),
        (row(commit, PASS_TO_PASS=[7]), "PASS_TO_PASS must be a list of test names"),
        (row(commit, FAIL_TO_PASS=[]), "FAIL_TO_PASS is empty"),
        (row(commit, FAIL_TO_PASS=""), "FAIL_TO_PASS is empty"),
        ({**row(commit), "FAIL_TO_PASS": None}, "the columns FAIL_TO_PASS are missing or empty"),
        (row(commit, PASS_TO_PASS=None), "the columns PASS_TO_PASS are missing or empty"),
        (row(commit, repo="../../etc"), "repo must be owner/name, got '../../etc'"),
        (row("--help"), "base_commit must be 7 to 64 digits"),
        (row(commit, test_cmd={"a": 1}), "test_cmd must be a command or a list of them"),
        (row(commit, install_config="{"), "install_config must be an object"),
        ("x" * 30_000, "it has more than"),
    ]
    later: list[tuple[dict[str, Any], str]] = [
        (row(commit, instance_id="patch", patch="no patch"), "patch is not a patch that git made"),
        (row(commit, instance_id="outside", patch=outside), "patch: '../x' is not a plain relative path"),
        (row(commit, instance_id="git", test_patch=TESTS.replace("test_calc.py", ".git/hooks/x")), "is a file of git itself"),
        (row(commit, instance_id="stale", patch=FIX.replace("return a - b", "return b")), "patch does not apply to the repository"),
        (row(commit, instance_id="binary", test_patch=BINARY), "it lacks the content of the binary file 'a.bin': make it with"),
        (row("0" * 40, instance_id="commit"), "git checkout failed: fatal: "),
        (row(commit, instance_id="repo", repo="other/thing"), "has no repository other/thing: clone it as other/thing"),
        (row(commit, instance_id="up", FAIL_TO_PASS=["../a.py::b"]), "'../a.py' is not a plain relative path"),
        (row(commit, instance_id="django", FAIL_TO_PASS=["test_a (x.Y)"], PASS_TO_PASS=[]), "give --test-command"),
        (row(commit, instance_id="-a"), "'-a' cannot name a directory"),
    ]  # fmt: skip
    source = rows(tmp_path / "rows.jsonl", *(each for each, _ in (*bad, *later)), "", row(commit))
    found = imported("swe", source, tmp_path / "to", "--repositories", str(clones))
    assert found.code == 1 and found.report["imported"] == 1 and found.outcomes[NAME] == "imported"
    for number, (_, words) in enumerate(bad, 1):
        assert words in found.reasons[f"rows.jsonl line {number}"]
    for each, words in later:
        assert words in found.reasons[each["instance_id"]]
    assert [path.name for path in (tmp_path / "to").iterdir()] == [NAME]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_that_is_one_array_has_a_row_in_each_item(
    tmp_path: Path, clones: Path, commit: str, indent: int | None
) -> None:
    items = [row(commit), 7, row(commit, instance_id="again", repo="a b")]
    (source := tmp_path / "rows.json").write_text("\ufeff\n" + json.dumps(items, indent=indent))
    found = imported("swe", source, tmp_path / "to", "--repositories", str(clones))
    assert found.outcomes == {NAME: "imported", "rows.json item 2": "refused", "rows.json item 3": "refused"}
    assert found.reasons["rows.json item 2"] == "it must be an object, got 7"
    assert found.reasons["rows.json item 3"] == "repo must be owner/name, got 'a b'"


def test_an_array_that_cannot_be_read_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "to"
    for text, words in (
        ("[\n{},\n{", "is an array that cannot be read: it is not JSON: "),
        ("[" * 100_000, "is an array that cannot be read: it is nested too deeply"),
        ("[ ]", "holds no task: it is an empty array"),
    ):
        assert words in refused("swe", rows(tmp_path / "rows.json", text), to)
    monkeypatch.setattr(swe_rows, "MAX_ARRAY_BYTES", 5)
    assert "is an array of more than 0 MB: give JSON lines" in refused(
        "swe", rows(tmp_path / "rows.json", "[1, 2]"), to
    )


def test_lines_after_an_array_in_the_first_stay_lines(tmp_path: Path) -> None:
    found = imported("swe", rows(tmp_path / "rows.jsonl", "[7]", "[8]"), tmp_path / "to")
    assert found.reasons == {
        f"rows.jsonl line {number}": f"it must be an object, got [{value}]"
        for number, value in ((1, 7), (2, 8))
    }


@pytest.mark.parametrize("value", [None, "", " ", "[]", []])
def test_a_row_may_have_no_tests_that_pass_before(
    tmp_path: Path, clones: Path, commit: str, value: object
) -> None:
    source = rows(tmp_path / "rows.jsonl", {**row(commit), "PASS_TO_PASS": value})
    found = imported("swe", source, tmp_path / "to", "--repositories", str(clones))
    assert found.outcomes == {NAME: "imported"}, found.reasons
    expected = load(tmp_path / "to" / NAME).files["tests/expected.json"].data
    assert json.loads(expected) == ["test_calc.py::test_add"]


def test_a_link_that_a_patch_would_follow_refuses_the_row(tmp_path: Path, clones: Path) -> None:
    place = clones / "people" / "calculator"
    (place / "test_calc.py").unlink()
    (place / "test_calc.py").symlink_to("/etc/passwd")
    git(place, "commit", "-q", "-am", "a link")
    source = rows(tmp_path / "rows.jsonl", row(git(place, "rev-parse", "HEAD")))
    found = imported("swe", source, tmp_path / "to", "--repositories", str(clones))
    assert found.reasons == {
        NAME: "test_calc.py is a link in the repository: such a file cannot be patched here"
    }


def test_a_file_without_rows_and_options_that_contradict_are_refused_as_a_whole(tmp_path: Path) -> None:
    to, empty = tmp_path / "to", rows(tmp_path / "empty.jsonl")
    binary = write(tmp_path, {"rows.parquet": b"PAR1\0\0"}) / "rows.parquet"
    assert "holds no task: it has no line" in refused("swe", empty, to)
    assert "is a binary file: give JSON lines" in refused("swe", binary, to)
    assert "does not exist: give a file of JSON lines" in refused("swe", tmp_path / "none", to)
    assert "is not a file" in refused("swe", tmp_path, to)
    assert "--base is about --repositories" in refused("swe", empty, to, "--base", "a")
    assert (
        refused("swe", empty, to, "--image", "a", "--repositories", "b") == "give --image or --repositories"
    )
    assert "is not a directory: give the one with" in refused(
        "swe", empty, to, "--repositories", str(tmp_path / "no")
    )


@pytest.mark.parametrize(
    ("printed", "expected", "reward"),
    [
        ("PASSED a.py::b\n", ["a.py::b"], "1"),
        ("PASSED a.py::b\nFAILED a.py::b - again\n", ["a.py::b"], "0"),
        ("PASSED a.py::b\n", ["a.py::b", "a.py::c"], "0"),
        ("XFAIL a.py::b - known\n", ["a.py::b"], "1"),
        ("\x1b[32mPASSED\x1b[0m a.py::\x1b[1mb\x1b[0m\n", ["a.py::b"], "1"),
        ("PASSED a.py::b[x y]\n", ["a.py::b[x y]"], "1"),
        ("PASSED a.py::b[x y]\n", ["a.py::b[x"], "1"),
        ("PASSED a.py::b[x y]\nFAILED a.py::b[x z] - no\n", ["a.py::b[x"], "0"),
        ("test_a (m.C) ... ok\n", ["test_a (m.C)"], "1"),
        ("test_a (m.C) ... FAIL\n", ["test_a (m.C)"], "0"),
        ("test_a (m.C) ... skipped 'no'\n", ["test_a (m.C)"], "0"),
        ("", ["a.py::b"], "0"),
        ("NOT PASSED a.py::b\n", ["a.py::b"], "0"),
        # sympy's runner; the last test of a file has the file's result on its line
        ("a/test_m.py[3] \ntest_Mod ok\ntest_last ok          [OK]\n", ["test_Mod", "test_last"], "1"),
        ("test_Mod F\ntest_last ok     [FAIL]\n", ["test_Mod"], "0"),
        ("test_Mod E\n", ["test_Mod"], "0"),
        ("test_Mod f\n", ["test_Mod"], "1"),
        ("test_Mod s\n", ["test_Mod"], "0"),
        ("test_Mod ok\ntest_Mod E\n", ["test_Mod"], "0"),
        ("test_Mod is ok\n", ["test_Mod"], "0"),
        ("m.py[2] \ntest_Mod (1, 2) ok\ntest_w a ok    [OK]\n", ["test_Mod", "test_w"], "1"),
        ("m.py[2] \ntest_Mod \n1\nok\ntest_w\nok    [OK]\n", ["test_Mod", "test_w"], "1"),
        ("m.py[2] \ntest_Mod a F\ntest_w ok\n", ["test_Mod"], "0"),
        ("m.py[2] \ntest_Mod ok\nF\ntest_w ok\n", ["test_Mod"], "0"),
        ("m.py[2] \ntest_Mod a ok\nX    [FAIL]\n", ["test_Mod"], "0"),
        ("m.py[2] \ntest_Mod s - no\n\nn.py[1] \nok\n", ["test_Mod"], "0"),
        ("m.py[1] \ntest_Mod ok [OK]\n\n____ m.py:test_Mod ____\n", ["test_Mod"], "0"),
        # Django's runner, whose tests print into their line
        ("test_c (x.T) ... Testing against Django installed in '/d'\nok\n", ["test_c (x.T)"], "1"),
        ("test_c (x.T) ... Testing against Django installed in '/d'\nFAIL\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... \nCreating\nexpected failure\n", ["test_c (x.T)"], "1"),
        ("test_c (x.T)\nWhat it is. ... Internal Server Error: /x/\nok\n", ["What it is."], "1"),
        ("test_c (x.T) ... prints\nok\nERROR\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... a\ntest_d (x.T) ... ok\nok\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... skipped 'no'\nok\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... test_d (x.T) ... a\nok\n\nFAIL: test_c (x.T) (i=1)\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T)\nDoc C ... ok\nFAIL\n\nFAIL: test_c (x.T)\nDoc C\n---\n", ["Doc C"], "0"),
        ("Doc C ... test_d (x.T) ... ok\n\nFAIL: test_c (x.T) (i=1)\nDoc C\n", ["Doc C"], "0"),
        ("Doc C ... test_d (x.T) ... ok\n", ["test_d (x.T)"], "1"),
        ("Doc C ... test_d (x.T) ... a\nok\n", ["Doc C"], "0"),
        ("Doc C ... test_d (x.T)\nhello\nok\n", ["Doc C"], "0"),
        ("Doc C ... test_d (x.T) ... a\nok\n", ["test_d (x.T)"], "1"),
        ("Doc C ... Creating ... a\nok\n", ["Doc C"], "1"),
        ("Doc C ... waits ... ok\n", ["Doc C ... waits"], "1"),
        ("test_c (x.T) ... unexpected success\nok\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... ok\nunexpected success\n", ["test_c (x.T)"], "1"),
        ("test_c (x.T) ... a\nok\nunexpected success\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... a\nskipped 'no'\nok\n", ["test_c (x.T)"], "0"),
        ("test_c (x.T) ... ok\nUNEXPECTED SUCCESS: test_c (x.T)\n", ["test_c (x.T)"], "0"),
    ],
)
def test_the_verdict_is_that_every_named_test_has_passed(
    tmp_path: Path, printed: str, expected: list[str], reward: str
) -> None:
    write(tmp_path, {"expected.json": json.dumps(expected), "ran": printed, "logs/verifier/x": ""})
    text = GRADE.replace("/tests/", f"{tmp_path}/").replace("/logs/", f"{tmp_path}/logs/")
    write(tmp_path, {"grade.py": text})
    command = [sys.executable, "-I", str(tmp_path / "grade.py"), str(tmp_path / "ran")]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "logs/verifier/reward.txt").read_text() == reward
    results = json.loads((tmp_path / "logs/verifier/results.json").read_text())
    assert {each["name"] for each in results} == set(expected)
