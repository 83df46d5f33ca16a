"""Imported rows whose tests have a runner of their own: Django's, with dotted names of modules, and sympy's, with bare names of tests."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.tasks.importing import swe_commands
from tests.import_sets import CALCULATOR, FIX, committed, row, rows, write
from tests.unit.tasks.importing.rig import imported, judged

pytestmark = pytest.mark.tier("tasks")
TEST = """\
diff --git a/{path} b/{path}
--- a/{path}
+++ b/{path}
@@ -1,2 +1,4 @@
 import calc
+def test_add():
+    assert calc.add(20, 22) == 42
 def test_twice(): assert calc.twice(4) == 8
"""
GONE = "diff --git a/old.py b/old.py\ndeleted file mode 100644\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
DATA = "diff --git a/want.txt b/want.txt\nnew file mode 100644\n--- /dev/null\n+++ b/want.txt\n@@ -0,0 +1 @@\n+42\n"
BEFORE = "import calc\ndef test_twice(): assert calc.twice(4) == 8\n"
SYMPY = """\
#!/usr/bin/env python3
import runpy, sys
sys.path.insert(0, ".")
assert sys.argv[1:3] == ["-C", "--verbose"] and sys.argv[3:], sys.argv
for file in sys.argv[3:]:
    tests = [each for name, each in runpy.run_path(file).items() if name.startswith("test_")]
    print(f"{file}[{len(tests)}] ", end="")
    for each in tests:
        print(f"\\n{each.__name__} ", end="")
        try:
            each()
        except AssertionError:
            print("F", end="")
        else:
            print("ok", end="")
    print(" " * 40 + "[OK]\\n")
"""
DJANGO = """\
#!/usr/bin/env python3
import importlib, sys
sys.path[:0] = [".", "tests"]
assert sys.argv[1:6] == ["--verbosity", "2", "--settings=test_sqlite", "--parallel", "1"] and sys.argv[6:], sys.argv
for label in sys.argv[6:]:
    module = importlib.import_module(label)
    for name in [each for each in dir(module) if each.startswith("test_")]:
        print(f"{name} ({label}.T)", end=" ... ")
        print("Testing against Django installed in '/testbed/django'\\nSystem check identified no issues (0 silenced).")
        try:
            getattr(module, name)()
        except AssertionError:
            print("FAIL")
        else:
            print("ok")
"""
SETS: Mapping[str, tuple[str, str, str, str]] = {
    "sympy/sympy": ("calc/tests/test_arit.py", "bin/test", SYMPY, "{}"),
    "django/django": ("tests/utils_tests/test_arit.py", "tests/runtests.py", DJANGO, "{} (utils_tests.test_arit.T)"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["image", "files"])
@pytest.mark.parametrize("command", ["", "row"])
@pytest.mark.parametrize("repo", SETS)
def test_a_row_of_a_repository_with_its_own_runner_runs_the_files_of_its_test_patch(
    tmp_path: Path, repo: str, command: str, form: str
) -> None:
    path, program, runner, name = SETS[repo]
    work = tmp_path / "clones" / repo
    files = {"calc.py": CALCULATOR["calc.py"], "old.py": "x = 1\n", path: BEFORE, program: runner}
    write(work, files)
    (work / program).chmod(0o755)
    columns = {
        "repo": repo,
        "test_patch": TEST.format(path=path) + GONE + DATA,
        "FAIL_TO_PASS": [name.format("test_add")],
        "PASS_TO_PASS": [name.format("test_twice")],
        "test_cmd": swe_commands.OWN[repo].rpartition(" ")[0] if command else None,
    }
    source = rows(tmp_path / "rows.jsonl", row(committed(work), image="a:1", patch=FIX, **columns))
    more = ("--repositories", str(tmp_path / "clones")) if form == "files" else ()
    found = imported("swe", source, tmp_path / "to", *more)
    assert found.code == 0, found.reasons
    task = tmp_path / "to" / "people__calculator-7"
    assert judged(task, work) == "0"
    write(work, {"calc.py": CALCULATOR["calc.py"].replace("a - b", "a + b")})
    assert judged(task, work) == "1"
    write(work, {"calc.py": "raise SystemExit\n"})
    assert judged(task, work) == "0"


@pytest.mark.parametrize("form", ["image", "files"])
@pytest.mark.parametrize(
    ("repo", "printer"),
    [
        ("sympy/sympy", "sympy/testing/runtests.py"),
        ("sympy/sympy", "sympy/utilities/runtests.py"),
        ("django/django", "django/test/runner.py"),
    ],
)
def test_the_module_that_prints_the_results_is_that_of_the_commit(
    tmp_path: Path, repo: str, printer: str, form: str
) -> None:
    path, program, runner, name = SETS[repo]
    work = tmp_path / "clones" / repo
    starts = f"#!/usr/bin/env python3\nimport runpy\nrunpy.run_path({printer!r})\n"
    write(work, {"calc.py": CALCULATOR["calc.py"], path: BEFORE, program: starts, printer: runner})
    (work / program).chmod(0o755)
    columns = {
        "repo": repo,
        "test_patch": TEST.format(path=path),
        "FAIL_TO_PASS": [name.format("test_add")],
        "PASS_TO_PASS": [name.format("test_twice")],
    }
    source = rows(tmp_path / "rows.jsonl", row(committed(work), image="a:1", patch=FIX, **columns))
    more = ("--repositories", str(tmp_path / "clones")) if form == "files" else ()
    assert imported("swe", source, tmp_path / "to", *more).code == 0
    write(work, {printer: runner.replace('"FAIL"', '"ok"').replace('"F"', '"ok"')})
    task = tmp_path / "to" / "people__calculator-7"
    assert judged(task, work) == "0"
    write(work, {"calc.py": CALCULATOR["calc.py"].replace("a - b", "a + b")})
    assert judged(task, work) == "1"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--test-command", "run {modules} -f {files}"), "run utils_tests.test_arit -f tests/utils_tests/test_arit.py"),
        (("--test-command", "run all"), "\nrun all' >"),
    ],
)  # fmt: skip
def test_a_command_given_for_all_rows_holds_above_that_of_the_repository(
    tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    columns = {"test_patch": TEST.format(path="tests/utils_tests/test_arit.py"), "PASS_TO_PASS": ["/a::b."]}
    named = row("1" * 40, image="a:1", repo="django/django", FAIL_TO_PASS=["test_a (x.Y)"], **columns)
    source = rows(tmp_path / "rows.jsonl", named | {"test_cmd": "other"})
    assert imported("swe", source, tmp_path / "to", *more).code == 0
    assert words in (tmp_path / "to/people__calculator-7/tests/test.sh").read_text()


@pytest.mark.parametrize(
    ("test_cmd", "words"),
    [
        (None, '-v python3)" ./tests/runtests.py --verb'),
        ("pytest -q", "pytest -q tests/utils_tests/test_arit.py"),
    ],
)
def test_a_sentence_with_colons_is_not_a_name_in_the_form_of_pytest(
    tmp_path: Path, test_cmd: str | None, words: str
) -> None:
    columns = {"test_patch": TEST.format(path="tests/utils_tests/test_arit.py"), "PASS_TO_PASS": ["a (x.Y)"]}
    named = row(
        "1" * 40, image="a:1", repo="django/django", FAIL_TO_PASS=["Doc with Foo::bar text"], **columns
    )
    source = rows(tmp_path / "rows.jsonl", named | {"test_cmd": test_cmd})
    assert imported("swe", source, tmp_path / "to").code == 0
    assert words in (tmp_path / "to/people__calculator-7/tests/test.sh").read_text()


def test_a_row_without_a_file_for_the_place_in_its_command_is_refused(tmp_path: Path) -> None:
    named = row("1" * 40, image="a:1", test_patch=GONE, FAIL_TO_PASS=["a test"], PASS_TO_PASS=[])
    source = rows(tmp_path / "rows.jsonl", named)
    found = imported("swe", source, tmp_path / "to", "--test-command", "run {files}")
    assert found.reasons == {
        "people__calculator-7": "its test patch leaves no file for {files}: give a --test-command without it"
    }
