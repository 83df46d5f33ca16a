"""The tests of an imported row of SWE-bench, run over what an agent left: they decide by the base commit's files, not by the agent's."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.import_sets import CALCULATOR, CHECK, FIX, TESTS, committed, git, row, rows, write
from tests.unit.tasks.importing.rig import imported, judged

pytestmark = pytest.mark.tier("tasks")
NAME = "people__calculator-7"
PASSES = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
MORE = """\
diff --git a/deep/test_more.py b/deep/test_more.py
new file mode 100644
--- /dev/null
+++ b/deep/test_more.py
@@ -0,0 +1,4 @@
+import calc
+
+def test_more():
+    assert calc.add(2, 3) == 5
"""
GUTTED = CALCULATOR["test_calc.py"].replace("import calc", "import calc; calc.add = lambda a, b: a + b")


def _nothing(work: Path) -> None:
    pass


def _fixes(work: Path) -> None:
    (work / "calc.py").write_text(CALCULATOR["calc.py"].replace("a - b", "a + b"))


def _configures(work: Path) -> None:
    write(work, {"conftest.py": PASSES})


def _configures_below(work: Path) -> None:
    (work / "deep" / "conftest.py").write_text(PASSES)
    write(work, {"pytest.ini": "[pytest]\naddopts = -p deep.conftest\npythonpath = .\n"})


def _deletes_the_history(work: Path) -> None:
    shutil.rmtree(work / ".git")
    write(work, {"test_calc.py": GUTTED})


def _replaces_an_object(work: Path) -> None:
    """The object of the tests' file has other bytes: git does not notice it."""
    name = git(work, "rev-parse", "HEAD:test_calc.py")
    write(work, {"test_calc.py": GUTTED})
    other = git(work, "hash-object", "-w", "test_calc.py")
    objects = work / ".git" / "objects"
    (objects / name[:2] / name[2:]).unlink()
    shutil.copy(objects / other[:2] / other[2:], objects / name[:2] / name[2:])


def _replaces_an_object_by_reference(work: Path) -> None:
    write(work, {"test_calc.py": GUTTED})
    git(
        work,
        "replace",
        git(work, "rev-parse", "HEAD:test_calc.py"),
        git(work, "hash-object", "-w", "test_calc.py"),
    )


def _filters(work: Path) -> None:
    """Git passes each file through a program when it writes it."""
    write(work, {"gutted": GUTTED + "def test_add():\n    pass\n", ".gitattributes": "*.py filter=f\n"})
    git(work, "config", "filter.f.smudge", "cat gutted")


def _stands_in_the_way(work: Path) -> None:
    (work / "test_calc.py").unlink()
    write(work, {"test_calc.py/file": "x"})
    _fixes(work)


def _links_a_directory(work: Path) -> None:
    shutil.rmtree(work / "deep")
    write(work, {"other/conftest.py": PASSES})
    (work / "deep").symlink_to("other")


def _plants_compiled_tests(work: Path) -> None:
    write(
        work,
        {
            "__pycache__/test_calc.cpython-311.pyc": b"",
            "setup.cfg": "[tool:pytest]\naddopts = --collect-only\n",
        },
    )
    _fixes(work)


def _shadows(work: Path, *paths: str) -> None:
    claims = [f"print('PASSED {name}')" for name in ("test_calc.py::test_add", "test_calc.py::test_twice")]
    body = "\n".join([*claims, "print('PASSED deep/test_more.py::test_more')", "raise SystemExit"])
    write(work, dict.fromkeys(paths, body))


def _shadows_pytest(work: Path) -> None:
    _shadows(work, "pytest/__init__.py", "pytest/__main__.py")


def _shadows_the_inside_of_pytest(work: Path) -> None:
    _shadows(work, "_pytest/__init__.py")


def _shadows_a_library_of_pytest(work: Path) -> None:
    _shadows(work, "pluggy/__init__.py")


def _adds_a_plugin(work: Path) -> None:
    write(work, {"zz.egg-info/entry_points.txt": "[pytest11]\nzz = zzplug\n", "zzplug.py": PASSES})
    write(work, {"zz.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: zz\nVersion: 1\n"})


def _adds_a_plugin_behind_a_link(work: Path) -> None:
    _adds_a_plugin(work)
    (work / "zz.egg-info").rename(work / "other")
    (work / "zz.Dist-Info").symlink_to("other")


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with the calculator's repository."""
    committed(write(tmp_path / "clones" / "people" / "calculator", CALCULATOR))
    return tmp_path / "clones"


IN_GIT = (_deletes_the_history, _replaces_an_object, _replaces_an_object_by_reference, _filters)
ACTS = (
    (_nothing, "0"),
    (_fixes, "1"),
    (_configures, "0"),
    (_configures_below, "0"),
    (_deletes_the_history, "0"),
    (_replaces_an_object, "0"),
    (_replaces_an_object_by_reference, "0"),
    (_filters, "0"),
    (_stands_in_the_way, "1"),
    (_links_a_directory, "0"),
    (_plants_compiled_tests, "1"),
    (_shadows_pytest, "0"),
    (_shadows_the_inside_of_pytest, "0"),
    (_shadows_a_library_of_pytest, "0"),
    (_adds_a_plugin, "0"),
    (_adds_a_plugin_behind_a_link, "0"),
)


@pytest.mark.parametrize(
    ("form", "acts", "reward"),
    [
        (form, *each)
        for each in ACTS
        for form in ("image", "files")
        if form == "image" or each[0] not in IN_GIT
    ],
)
def test_the_tests_run_with_the_files_of_the_base_commit_whatever_the_agent_left(
    tmp_path: Path, clones: Path, form: str, acts: Callable[[Path], None], reward: str
) -> None:
    work = clones / "people" / "calculator"
    write(
        work,
        {"deep/conftest.py": "# of it\n", "deep/data": "1\n", "setup.cfg": "[metadata]\nname = calc\n"},
    )
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "configured")
    commit = git(work, "rev-parse", "HEAD")
    named = row(commit, image="a:1", test_patch=TESTS + MORE, PASS_TO_PASS=["deep/test_more.py::test_more"])
    source = rows(tmp_path / "rows.jsonl", named)
    more = ("--repositories", str(clones)) if form == "files" else ()
    assert imported("swe", source, tmp_path / "to", *more).code == 0
    environments = (work / ".venv", work / "node_modules")
    for each in environments:  # of the image, not of the repository
        write(each, {"conftest.py": "# of the image\n"})
    acts(work)
    assert judged(tmp_path / "to" / NAME, work, plugins="plugin" in acts.__name__) == reward
    if form == "image":
        assert all((each / "conftest.py").exists() for each in environments)


def test_a_configuration_that_the_fix_changes_stays_the_agents_and_the_report_says_so(
    tmp_path: Path, clones: Path
) -> None:
    work = clones / "people" / "calculator"
    write(work, {"pytest.ini": "[pytest]\naddopts = --collect-only\n"})
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "configured")
    named = row(git(work, "rev-parse", "HEAD"), image="a:1")
    write(work, {"pytest.ini": "[pytest]\n"})
    source = rows(tmp_path / "rows.jsonl", named | {"patch": FIX + git(work, "diff") + "\n"})
    for form, more in (("image", ()), ("files", ("--repositories", str(clones)))):
        found = imported("swe", source, tmp_path / form, *more)
        assert "its fix changes 'pytest.ini', so the tests run with the agent's version" in found.notes[NAME]
        _fixes(work)
        assert judged(tmp_path / form / NAME, work) == "1"
        git(work, "checkout", "-q", "test_calc.py")


UNITTESTS = """\
import unittest
import calc

class T(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(20, 22), 42)
"""
RUNNER = """\
import sys, unittest
sys.path[:0] = [".", "..", "checks"]
unittest.main(module="cases", argv=["x"], verbosity=2)
"""
CLAIMS = "print('test_add (cases.T.test_add) ... ok')\n"


@pytest.mark.parametrize("form", ["image", "files"])
@pytest.mark.parametrize(
    ("command", "program", "body"),
    [
        ("python3 checks/run.py", "checks/run.py", CLAIMS),
        ("python3 ./checks/run.py --settings=calc", "checks/run.py", CLAIMS),
        ("cd checks && python3 ../checks/run.py", "checks/run.py", CLAIMS),
        ("cd checks; PYTHONPATH=..:. python3 run.py", "checks/run.py", CLAIMS),
        ("python3 -m checks.run", "checks/run.py", CLAIMS),
        ("python3 -m checks", "checks/__main__.py", CLAIMS),
        ("bin/check", "bin/check", "#!/usr/bin/env python3\n" + CLAIMS),
        ("python3 checks/run.py", "checks/cases.py", UNITTESTS.replace("42", "-2")),
    ],
)
def test_the_programs_that_a_test_command_names_and_tests_in_the_form_of_unittest_are_those_of_the_base(
    tmp_path: Path, clones: Path, form: str, command: str, program: str, body: str
) -> None:
    work = clones / "people" / "calculator"
    runners = dict.fromkeys(("checks/run.py", "checks/__main__.py"), RUNNER)
    write(work, runners | {"checks/cases.py": UNITTESTS, "bin/check": "#!/usr/bin/env python3\n" + RUNNER})
    (work / "bin" / "check").chmod(0o755)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "with a runner")
    names = {"FAIL_TO_PASS": ["test_add (cases.T.test_add)"], "PASS_TO_PASS": []}
    named = row(git(work, "rev-parse", "HEAD"), image="a:1", test_cmd=command, **names)
    source = rows(tmp_path / "rows.jsonl", named)
    more = ("--repositories", str(clones)) if form == "files" else ()
    assert imported("swe", source, tmp_path / "to", *more).code == 0
    write(work, {program: body})
    assert judged(tmp_path / "to" / NAME, work) == "0"
    _fixes(work)
    assert judged(tmp_path / "to" / NAME, work) == "1"


@pytest.mark.parametrize("form", ["image", "files"])
def test_a_program_that_the_test_command_reaches_through_a_linked_directory_is_that_of_the_base(
    tmp_path: Path, clones: Path, form: str
) -> None:
    work = clones / "people" / "calculator"
    run = '#!/bin/bash\n. "$(dirname "$0")/lib.sh"\n'
    write(
        work, {"sub/scripts/run.sh": run, "sub/scripts/lib.sh": 'python3 check.py "$@"\n', "README": "none"}
    )
    (work / "sub/scripts/run.sh").chmod(0o755)
    (work / "bin").symlink_to("sub/bin")
    (work / "sub/bin").symlink_to("scripts")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "with a linked directory")
    named = row(git(work, "rev-parse", "HEAD"), image="a:1", test_cmd="./bin/run.sh")
    source = rows(tmp_path / "rows.jsonl", named)
    more = ("--repositories", str(clones)) if form == "files" else ()
    assert imported("swe", source, tmp_path / "to", *more).code == 0
    fake = "#!/bin/bash\n" + "".join(
        f"echo PASSED test_calc.py::{name}\n" for name in ("test_add", "test_twice")
    )
    write(work, {"sub/scripts/run.sh": fake})
    assert judged(tmp_path / "to" / NAME, work) == "0"
    (work / "bin").unlink()
    write(work, {"bin/run.sh": fake})
    (work / "bin/run.sh").chmod(0o755)
    assert judged(tmp_path / "to" / NAME, work) == "0"
    _fixes(work)
    assert judged(tmp_path / "to" / NAME, work) == "1"
    assert (work / "bin").is_symlink() and (work / "sub/scripts/run.sh").read_text() == run


def test_a_program_of_the_test_command_that_the_fix_changes_stays_the_agents_and_the_report_says_so(
    tmp_path: Path, clones: Path
) -> None:
    work = clones / "people" / "calculator"
    runner = (work / "check.py").read_text()
    write(work, {"check.py": runner.replace("PASSED", "FAILED")})
    git(work, "commit", "-q", "-a", "-m", "a faulty runner")
    write(work, {"check.py": runner})
    fix = FIX + git(work, "diff") + "\n"
    named = row(git(work, "rev-parse", "HEAD"), image="a:1", test_cmd=CHECK, patch=fix)
    for form, more in (("image", ()), ("files", ("--repositories", str(clones)))):
        found = imported("swe", rows(tmp_path / "rows.jsonl", named), tmp_path / form, *more)
        assert "its fix changes 'check.py', so the tests run with the agent's version" in found.notes[NAME]
        _fixes(work)
        assert judged(tmp_path / form / NAME, work) == "1"
        git(work, "checkout", "-q", "test_calc.py")


@pytest.mark.parametrize("form", ["image", "files"])
def test_a_package_called_pytest_and_a_plugin_of_the_base_or_of_the_fix_stay(
    tmp_path: Path, clones: Path, form: str
) -> None:
    work = clones / "people" / "calculator"
    write(work, {"for/pytest/word.py": "S = 1\n", "setup.py": "# pytest11\n"})
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "a plugin")
    commit = git(work, "rev-parse", "HEAD")
    write(work, {"new/pytest/word.py": "W = 1\n"})
    git(work, "add", "-A")
    named = row(commit, image="a:1", patch=FIX + git(work, "diff", "--cached") + "\n")
    source = rows(tmp_path / "rows.jsonl", named)
    more = ("--repositories", str(clones)) if form == "files" else ()
    found = imported("swe", source, tmp_path / "to", *more)
    assert "its fix changes 'new/pytest'" in found.notes[NAME]
    write(work, {"calc.egg-info/entry_points.txt": "[pytest11]\ncalc = calc\n"})
    _fixes(work)
    assert judged(tmp_path / "to" / NAME, work) == "1"
    kept = ("for/pytest/word.py", "new/pytest/word.py", "calc.egg-info/entry_points.txt")
    assert all((work / each).exists() for each in kept)
