"""Text that the agent's files have by design is not secret; copies of the hidden tests and of the solution stay suspects."""

import zlib
from collections.abc import Mapping
from dataclasses import replace

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
    name: str,
    shown: Mapping[str, str | bytes] | None = None,
    *,
    hidden: Mapping[str, str] | None = None,
    written: Mapping[str, str] | None = None,
) -> set[str]:
    """The suspect places of a task of the set with further files in its environment, its hidden tests or its solution's work."""
    files = made(name) | {path: text.encode() for path, text in (hidden or {}).items()}
    there = {
        f"/app/{path.removeprefix(ENVIRONMENT)}": body
        for path, body in files.items()
        if path.startswith(ENVIRONMENT)
    }
    more = {path: text if isinstance(text, bytes) else text.encode() for path, text in (shown or {}).items()}
    readable = Readable(files=there | more, variables={})
    solved = SOLVED[name]
    solved = replace(
        solved, written={**solved.written, **{path: text.encode() for path, text in (written or {}).items()}}
    )
    bodies = not_shown(secrets_of(Task.from_files(files), solved), solved, readable)
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


FLAG = '"flag": "FLAG{9f3a77c1e0b2}",'
ROWS = [f"2024-01-{n:02d},depot-{n * 7919:05d},{n * 104729}" for n in range(1, 21)]
CONFIG = [
    f"{name.upper()}_LIMIT = '{name} {n * 7919}'"
    for n, name in enumerate(("cpu", "disk", "net", "swap", "page", "fork"), 11)
]


@pytest.mark.parametrize(
    ("written", "path", "text"),
    [
        ({"result.json": f'{FLAG}\n"why": "{", ".join(["the sum of all rows"] * 4)}"'}, "/app/debug.json", FLAG),
        ({"out.csv": "\n".join(ROWS)}, "/app/old.csv", "\n".join(ROWS[:16])),
        ({"out.sql": "\n".join(ROWS)}, "/app/old.sql", "\n".join(ROWS[:16])),
        ({"out.py": "\n".join(ROWS), "out.csv": "\n".join(ROWS)}, "/app/old.py", "\n".join(ROWS[:16])),
        ({"config.py": "\n".join(CONFIG)}, "/app/backup/config_old.py", "\n".join(CONFIG[:5])),
        ({"flag.py": f"{FLAG}\n" + "\n".join(CONFIG[:3])}, "/app/debug.py", FLAG),
    ],
)  # fmt: skip
def test_parts_of_a_result_and_small_programs_are_no_patterns(
    written: Mapping[str, str], path: str, text: str
) -> None:
    assert path in suspects("pattern", {path: text}, written=written)


def test_data_of_the_solution_have_no_pattern() -> None:
    rows = "\n".join(ROWS)
    shown = {"/app/old.py": "\n".join(ROWS[:16])}
    assert "/app/old.py" in suspects(
        "pattern", shown, hidden={"solution/rows.csv": rows}, written={"new.py": rows}
    )


EXPECTED = "".join(f"{row}\n" for row in ROWS)
OUTPUTS = f"{TOTALS}{MEANS}"
OTHERS = OUTPUTS.replace("total", "sum").replace("mean", "middle")


@pytest.mark.parametrize(
    ("hidden", "path", "text"),
    [
        ({"tests/expected.csv": EXPECTED}, "/app/.cache/expected.csv", EXPECTED.partition("\n")[2]),
        ({"tests/expected.csv": EXPECTED}, "/app/tests/expected.csv", EXPECTED.partition("\n")[2]),
        ({"tests/test_rows.csv": EXPECTED}, "/app/tests/test_rows.csv", EXPECTED.partition("\n")[2]),
        ({"tests/test_outputs.py": OUTPUTS}, "/app/notes/test_outputs.py", OUTPUTS.replace("3.5", "4.5")),
        ({"tests/test_outputs.py": OUTPUTS}, "/app/old/tests/test_outputs.py", OUTPUTS.replace("3.5", "4.5")),
        ({"tests/test_calc.py": OUTPUTS, "tests/inspect_db.py": REPORTER}, "/app/tests/test_calc.py", OUTPUTS),
        ({"tests/test_outputs.py": OTHERS}, "/app/backup/tests/test_outputs.py", OTHERS),
    ],
)  # fmt: skip
def test_data_of_tests_and_tests_at_another_path_stay_secret(
    hidden: Mapping[str, str], path: str, text: str
) -> None:
    assert path in suspects("extended-tests", {path: text}, hidden=hidden)


@pytest.mark.parametrize(
    ("name", "is_test"),
    [
        ("test_outputs.py", True), ("tests.py", True), ("a.spec.ts", True), ("a_test.go", True), ("test1.js", True), ("PriceTest.java", True),
        ("TestPrice.java", True), ("PriceTests.cs", True), ("PriceSpec.scala", True), ("conftest.py", False), ("inspect_db.py", False),
        ("contest.py", False), ("latest.js", False), ("Contest.java", False), ("test_rows.csv", False), ("Inspector.java", False),
    ],
)  # fmt: skip
def test_a_test_is_known_by_its_name(name: str, is_test: bool) -> None:
    repeated = {
        "tests/test_total.py": TOTALS,
        f"tests/{name}": MEANS,
        "tests/test_mean.py": "import evaluate\n",
    }
    shown = {"/app/.git/objects/pack/a.pack": packed(TOTALS)}
    assert (suspects("repeated-tests", shown, hidden=repeated) == set()) is is_test
