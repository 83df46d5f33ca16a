"""Compiled Python in what the agent can read: made from the hidden tests or the solution, or from files that are the agent's anyway."""

import pytest

from ops.lab.task_set.small import pyc
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.findings import TaskFault
from orchestrator.tasks.vetting.leaks import Readable, confirmed, search
from orchestrator.tasks.vetting.secrets import Solved, secrets_of

TESTS = """
import app

def test_median_of_even_rows():
    '''Two in the middle.'''
    assert app.median([4, 1, 3, 2]) == 2.5, "middle of two"

def test_empty_rows_are_refused():
    expected = "no rows"
    assert app.median([]) == expected
"""
BEFORE = """
def median(rows):
    return rows[len(rows) // 2]
"""
SOLVED = """
def median(rows):
    if not rows:
        return "no rows"
    ordered = sorted(rows)
    middle_row, odd_count = divmod(len(ordered), 2)
    return ordered[middle_row] if odd_count else sum(ordered[middle_row - 1 : middle_row + 1]) / 2
"""
OTHER = """
def mean(rows):
    ordered, expected = sorted(rows), "no rows"
    return sum(ordered) / len(ordered) if ordered else expected
"""


def compiled(source: str) -> bytes:
    return pyc(compile(source, "/build/x.py", "exec"))


@pytest.mark.parametrize(
    ("source", "others", "whose"),
    [
        (TESTS, {}, "tests/test_out.py"),
        (SOLVED, {}, "app.py"),
        (BEFORE, {}, ""),
        (OTHER, {}, ""),
        (TESTS, {"/app/ci/test_out.py": TESTS.replace("4, 1", "9, 8")}, ""),
        ("", {}, ""),
    ],
    ids=["tests", "solved module", "module as it was", "another module", "a source of the agent's", "empty"],
)
def test_a_module_compiled_from_a_hidden_file_is_a_suspect(
    source: str, others: dict[str, str], whose: str
) -> None:
    files = {"task.toml": b"", "instruction.md": b"mend app.py", "tests/test.sh": b"true"}
    task = Task.from_files({**files, "tests/test_out.py": TESTS.encode()})
    solved = Solved(written={"app.py": SOLVED.encode()}, before={"/app/app.py": BEFORE.encode()})
    path = "/app/__pycache__/x.cpython-312.pyc"
    shown = {"/app/app.py": BEFORE.encode(), path: compiled(source)}
    shown |= {other: text.encode() for other, text in others.items()}
    found = [each for each in search(secrets_of(task, solved), Readable(files=shown, variables={})).suspects]
    assert [each.body.name for each in found if each.path == path] == [whose] * bool(whose)
    assert all(each.fault is TaskFault.LEAK_IN_CACHE for each in confirmed(found) if each.where == path)
