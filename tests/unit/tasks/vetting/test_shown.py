"""Text that the agent's files have by design is not secret; copies of the hidden tests and of the solution stay suspects."""

import zlib
from collections.abc import Mapping

import pytest

from ops.lab.task_set import made
from ops.lab.task_set.alike import CALC, EVALUATE, MEANS, PATTERN, REPORTER, TOTALS
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.leaks import Readable, search
from orchestrator.tasks.vetting.secrets import Solved, secrets_of
from orchestrator.tasks.vetting.shown import not_shown

FIXED = CALC.replace("/ len(values)", "/ len(values) if values else 0.0")
HALF = "".join(REPORTER.splitlines(keepends=True)[:-4])
SOLVED = {
    "extended-tests": Solved(written={"calc.py": FIXED.encode()}, before={"/app/calc.py": CALC.encode()}),
    "pattern": Solved(written={"report.py": REPORTER.encode(), "report.json": b'{"a": 5, "b": 2}'}),
}
SOLVED["repeated-tests"] = SOLVED["extended-tests"]
ENVIRONMENT = "environment/files/"


def packed(text: str) -> bytes:
    """A pack of a git repository with one blob."""
    blob = text.encode()
    head, left = bytes([0x80 * (len(blob) > 15) | 0x30 | len(blob) & 15]), len(blob) >> 4
    while left:
        head, left = head + bytes([0x80 * (left > 127) | left & 127]), left >> 7
    return b"PACK\0\0\0\2\0\0\0\1" + head + zlib.compress(blob) + bytes(20)


def suspects(
    name: str, shown: Mapping[str, str | bytes] | None = None, *, hidden: Mapping[str, str] | None = None
) -> set[str]:
    """The suspect places of a task of the set with further files in its environment or its hidden tests."""
    files = made(name) | {path: text.encode() for path, text in (hidden or {}).items()}
    there = {
        f"/app/{path.removeprefix(ENVIRONMENT)}": body
        for path, body in files.items()
        if path.startswith(ENVIRONMENT)
    }
    more = {path: text if isinstance(text, bytes) else text.encode() for path, text in (shown or {}).items()}
    readable = Readable(files=there | more, variables={})
    bodies = not_shown(secrets_of(Task.from_files(files), SOLVED[name]), SOLVED[name], readable)
    return {suspect.path for suspect in search(bodies, readable).suspects}


@pytest.mark.parametrize("name", SOLVED)
def test_what_tests_and_solution_repeat_of_the_project_is_not_suspected(name: str) -> None:
    shown = {"/app/.git/objects/pack/a.pack": packed(f"{EVALUATE}\n{TOTALS}\n{PATTERN}")}
    assert suspects(name) == suspects(name, shown) == set()


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("extended-tests", "/app/ci/test_calc.py", TOTALS + MEANS),
        ("extended-tests", "/app/notes.md", MEANS),
        ("extended-tests", "/app/.git/objects/pack/a.pack", packed(TOTALS + MEANS)),
        ("extended-tests", "/app/ci/run.py", made("extended-tests")["tests/run.py"]),
        ("extended-tests", "/app/tests/test_calc.py", TOTALS + MEANS),
        ("repeated-tests", "/app/tests/test_mean.py", made("repeated-tests")["tests/test_mean.py"]),
        ("repeated-tests", "/app/ci/cases.txt", MEANS),
        ("pattern", "/app/old/report.py", REPORTER),
        ("pattern", "/app/report.py.orig", REPORTER),
        ("pattern", "/app/notes.md", HALF),
        ("pattern", "/app/solve.sh", made("pattern")["solution/solve.sh"]),
        ("pattern", "/app/.git/objects/pack/a.pack", packed(REPORTER)),
    ],
)
def test_a_copy_of_the_tests_or_the_solution_is_a_suspect(name: str, path: str, text: str | bytes) -> None:
    assert path in suspects(name, {path: text})


def test_hidden_tests_that_are_all_in_the_environment_are_suspects() -> None:
    hidden = {"tests/test_total.py": TOTALS, "tests/test_mean.py": MEANS}
    shown = {f"/app/{path}": text for path, text in hidden.items()}
    assert suspects("repeated-tests", shown, hidden=hidden) >= shown.keys()


def test_a_test_that_passed_before_lies_where_the_project_has_it() -> None:
    hidden = {"tests/files/lib/tests/test_sum.py": TOTALS.replace("total", "sum")}
    text = hidden["tests/files/lib/tests/test_sum.py"]
    for path, known in (("lib/tests/test_sum.py", True), ("lib/test_sum.py", False), ("x/sums.py", False)):
        assert (suspects("extended-tests", {f"/app/{path}": text}, hidden=hidden) == set()) is known, path


def test_parts_of_a_solution_in_several_files_of_its_ending_do_not_make_it_known() -> None:
    lines = REPORTER.splitlines(keepends=True)
    shown = {"/app/a.py": "".join(lines[:12]), "/app/b.py": "".join(lines[9:])}
    copy = {"/app/old.txt": REPORTER}
    assert "/app/old.txt" in suspects("pattern", shown | copy)
