"""The pieces of the gate: a command as a part, what pytest reported, the list of flakes, new tests, the machine's memory."""

import json
import os
import socket
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import psutil
import pytest

from ops.gate import __main__ as main
from ops.gate import flaky, memory, new_tests, part, results, summary, verdict
from ops.gate.part import Ended
from ops.gate.results import Result
from ops.gate.verdict import Why
from tests.integration.deploy.small_disk import directory, small_disk
from tests.violations import Violation

__all__ = ["directory", "small_disk"]

pytestmark = pytest.mark.tier("gate")

HANGS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; print('x', flush=True); time.sleep(1000)"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
LEAVES = HANGS.replace("child.wait()", "")


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    ended = part.run("look", "always", command(HANGS), tmp_path / "look", 1.5)
    assert ended.trouble == "it was still running after 2 s and was ended"
    child = int((tmp_path / "look/output.log").read_text().split()[0])
    assert not psutil.pid_exists(child) and ended.left == ()


def test_what_a_part_leaves_running_is_named_and_ended(tmp_path: Path) -> None:
    ended = part.run("look", "always", command(LEAVES), tmp_path / "look", 60)
    child = int((tmp_path / "look/output.log").read_text().split()[0])
    assert ended.trouble == "" and [name.rpartition("(")[2] for name in ended.left] == [f"{child})"]
    assert not psutil.pid_exists(child)


def test_reports_of_an_earlier_run_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "look").mkdir()
    line = {"$report_type": "TestReport", "nodeid": "old", "outcome": "failed", "longrepr": "x"}
    (tmp_path / "look/1.jsonl").write_text(json.dumps(line))
    assert part.run("look", "always", command("pass"), tmp_path / "look", 60).tests == {}


def test_a_part_whose_output_cannot_be_kept_is_troubled_and_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = part.run("look", "always", command("print('ran')"), tmp_path / "file/look", 60)
    assert (
        ended.trouble
        == f"it did not run: {tmp_path}/file/look cannot be written (Not a directory); free some disk"
    )


def test_a_part_on_a_full_disk_says_so(small_disk: Path) -> None:
    room = small_disk / "look"
    with (small_disk / "fills").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 16))
    ended = part.run("look", "always", command("print('x' * 9000, flush=True)"), room, 60)
    assert ended.trouble == (
        "it ended with status 1, see its output; it printed nothing; the disk is full (0 MB are free)"
    )
    assert main.low_disk(small_disk) == ["only 0 MB of disk are free"]


def test_processes_of_a_gate_that_was_killed_are_ended_by_the_next_one() -> None:
    dead = subprocess.Popen(command("pass"))
    mark = part.mark_of(dead.pid)
    dead.wait()
    elsewhere = {**os.environ, part.MARK: "of-another-form"}
    other = subprocess.Popen(command("import time; time.sleep(1000)"), env=elsewhere)
    try:
        # The next one may be a gate that a test of another worker starts.
        assert any(_ends_what_is_left(mark) for _ in range(50))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def _ends_what_is_left(mark: str) -> bool:
    """Whether this process was the one that ended and named a process of that mark; it has ended and its port is free in any case."""
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(1000)"
    left = subprocess.Popen(command(code), env={**os.environ, part.MARK: mark}, stdout=subprocess.PIPE)
    try:
        assert left.stdout is not None
        port = left.stdout.readline()
        named = any(name.endswith(f"({left.pid})") for name in part.end_leftovers())
        left.wait(60)
        if port:
            socket.create_server(("127.0.0.1", int(port))).close()
        return named
    finally:
        left.kill()
        left.communicate()


def test_results_name_the_cause_and_pass_over_a_line_that_was_cut_off(tmp_path: Path) -> None:
    crash = {"reprcrash": {"message": "tests.violations.Violation: 1 is lost\nmore"}}
    lines = [
        {"$report_type": "TestReport", "nodeid": "a", "outcome": "passed", "duration": 1.0},
        {
            "$report_type": "TestReport",
            "nodeid": "a",
            "outcome": "failed",
            "duration": 2.0,
            "longrepr": crash,
        },
        {"$report_type": "CollectReport", "nodeid": "b.py", "outcome": "failed", "longrepr": "SyntaxError"},
        {"$report_type": "CollectReport", "nodeid": "c.py", "outcome": "passed"},
        {"$report_type": "SessionFinish"},
    ]
    (tmp_path / "1.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + '\n{"$report_ty')
    found = results.read(tmp_path)
    assert found == {
        "a": Result(test="a", seconds=3.0, cause="tests.violations.Violation: 1 is lost", violation=True),
        "b.py": Result(test="b.py", cause="SyntaxError"),
    }


GOOD = {"test": '"tests/test_a.py::TestA::test_b[1]"', "since": "2026-01-31", "cause": '"looks at the clock"'}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"since": "2026-01-24"}, "longer than 7 days"),
        ({"since": "2026-02-02"}, "which is still to come"),
        ({"cause": '"flaky"'}, "a cause of at least three words"),
        ({"since": '"yesterday"'}, "needs a day"),
        ({"test": '"tests/test_a.py::test_gone"'}, "does not exist"),
        ({"test": '"tests/test_none.py::test_b"'}, "does not exist"),
        ({"why": '"x"'}, "an entry has test, since and cause"),
        ({"since": "soon"}, "an entry has test, since and cause"),
    ],
)
def test_an_entry_of_the_list_has_a_test_a_day_and_a_cause(
    changes: dict[str, str], complaint: str | None, tmp_path: Path
) -> None:
    for room in ("tests", "ops"):
        (tmp_path / room).mkdir()
    (tmp_path / "tests/test_a.py").write_text("class TestA:\n    def test_b(self): ...\n")
    entry = "[[flaky]]\n" + "\n".join(f"{key} = {value}" for key, value in (GOOD | changes).items()) + "\n"
    (tmp_path / "ops/flaky.toml").write_text(entry)
    found = flaky.complaints(tmp_path, date(2026, 2, 1))
    assert len(found) == (1 if complaint else 0) and (complaint or "") in "".join(found)
    (tmp_path / "ops/flaky.toml").write_text(entry * 6)
    assert flaky.complaints(tmp_path, date(2026, 2, 1)) != []


def test_our_own_list_is_well_formed() -> None:
    root = Path(__file__).resolve().parents[3]
    assert len(flaky.read(root)) <= flaky.MAX_ENTRIES


def test_new_and_changed_tests_are_those_whose_syntax_differs(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        named = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path), *words]
        return subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "tests/test_a.py"
    file.parent.mkdir()
    file.write_text(
        "def test_a(): pass\nclass TestB:\n    def test_c(self): assert 1\n    def test_d(self): ...\n"
    )
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    base = git("rev-parse", "HEAD")
    file.write_text(
        "# moved\n\ndef test_a(): pass\nclass TestB:\n    def test_c(self): assert 2\n    def test_d(self): ...\n"
        "async def test_e(): ...\n"
    )
    (tmp_path / "tests/rig.py").write_text("def test_x(): ...\n")
    changed = ["tests/test_a.py", "tests/rig.py", "tests/test_gone.py"]
    assert new_tests.changed_tests(tmp_path, base, changed) == [
        "tests/test_a.py::TestB::test_c",
        "tests/test_a.py::test_e",
    ]
    assert len(new_tests.changed_tests(tmp_path, None, changed)) == 4
    assert new_tests.of("tests/test_a.py::TestB::test_c[1-2]") == "tests/test_a.py::TestB::test_c"


def test_the_machine_remembers_what_passed_and_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "deep/gate.json"
    monkeypatch.setenv("PENSTOCK_GATE_MEMORY", str(kept))
    root = Path(__file__).resolve().parents[3]
    assert [memory.turn(), memory.turn()] == [0, 0]
    assert memory.base(root) is None
    memory.passed("0" * 40)  # a commit of another clone
    assert memory.base(root) is None and memory.turn() == 1
    kept.write_text("not ours")
    assert memory.turn() == 0
    monkeypatch.setenv("PENSTOCK_GATE_MEMORY", "/proc/no/place/gate.json")
    assert memory.turn() is None and memory.base(root) is None
    memory.passed("0" * 40)
    assert memory.flaked(["a"], DAY) == {} and list(memory.owed()) == []


DAY = date(2026, 2, 1)


def test_parts_that_did_not_fit_are_owed_until_they_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GATE_MEMORY", str(tmp_path / "gate.json"))
    (tmp_path / "gate.json").write_text('{"runs": 5, "passed": ["x"]}')  # of an earlier version
    assert memory.turn() == 5 and list(memory.owed()) == []
    memory.passed("a", ran=["look"], owed=["stacks 1/2", "roles"])
    memory.passed("b", ran=["stacks 1/2", "faults 0/3"], owed=["look", "roles"])
    assert list(memory.owed()) == ["roles", "look"] and memory.turn() == 7


def test_the_first_day_of_a_flake_is_kept_until_it_has_not_been_seen_for_four_weeks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GATE_MEMORY", str(tmp_path / "gate.json"))
    assert memory.flaked(["a", "b"], DAY) == {"a": DAY, "b": DAY}
    later, much_later = DAY + timedelta(days=28), DAY + timedelta(days=57)
    assert memory.flaked(["a"], later) == {"a": DAY}
    assert memory.flaked(["a", "b"], much_later) == {"a": much_later, "b": much_later}


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (Result(test="a", called=True), None),
        (Result(test="a", cause="x"), Why.AGAIN),
        (Result(test="a"), Why.NOT_AGAIN),  # skipped
        (None, Why.NOT_AGAIN),
    ],
)
def test_only_a_second_run_that_passes_makes_a_flake(second: Result | None, why: Why | None) -> None:
    first = Result(test="a", cause="x")
    assert verdict.judge("look", first, {"a": second} if second else {}, []).why is why


def test_the_base_is_the_nearest_ancestor_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GATE_MEMORY", str(tmp_path / "gate.json"))
    room = tmp_path / "clone"
    room.mkdir()

    def git(*words: str) -> str:
        named = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(room), *words]
        return subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for _ in range(4):
        git("commit", "-q", "--allow-empty", "-m", "x")
        commits.append(git("rev-parse", "HEAD"))
    for at in (1, 3, 0):
        memory.passed(commits[at])
    assert memory.base(room) == commits[1]
    git("checkout", "-q", commits[1])
    assert memory.base(room) == commits[0]


def _ended(name: str, tests: dict[str, float]) -> Ended:
    found = {test: Result(test=test, seconds=seconds, called=True) for test, seconds in tests.items()}
    return Ended(name=name, why="always", seconds=9, trouble="", tests=found, left=())


def test_the_summary_names_slow_tests_and_files_of_the_tier_fast_that_are_not() -> None:
    fast = _ended("fast", {"a.py::x": 3.0, "a.py::y": 2.5, "b.py::z": 4.9})
    slow = _ended("stacks", {f"c.py::{n}": 20.0 + n for n in range(12)})
    assert summary.slow_files([fast, slow]) == [("a.py", 5.5)]
    assert [result.test for result in summary.slowest([fast, slow])] == [
        f"c.py::{n}" for n in range(11, 1, -1)
    ]


def test_the_exception_for_a_broken_invariant_has_the_name_that_the_gate_looks_for() -> None:
    assert f"{Violation.__module__}.{Violation.__name__}".endswith(results.NO_SECOND_CHANCE)
