"""The gate over a small repository with planted faults: real ./ops/test, real pytest, real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tier("gate")

REPOSITORY = Path(__file__).resolve().parents[3]
TIERS = """\
touched_s = 100
slice_s = 100
limit_minutes = 75
everything = ["ops/**"]

[tiers.fast]
when = "always"
budget = 60
planned = 50

[tiers.look]
when = "always"
budget = 60
planned = 50

[tiers.chaos]
when = "optional"
budget = 60
planned = 50
"""
PYTEST = """\
[tool.pytest.ini_options]
markers = ["tier(name)", "alone"]
pythonpath = ["."]
addopts = "-p xdist -p pytest_timeout -p pytest_reportlog -p no:cacheprovider"
"""
LOOK = 'import pytest\npytestmark = pytest.mark.tier("look")\n'
PASSES = "def test_this_one_passes():\n    pass\n"
FAILS = "def test_this_one_fails():\n    assert 1 == 2, 'planted'\n"
FLAKES = """\
import os, pathlib

def test_this_one_flakes():
    print("a run of this one")
    once = pathlib.Path(os.environ["ONCE"]) / "flaked"
    if not once.exists():
        once.touch()
        raise AssertionError("once per machine")
"""
VIOLATES = (
    FLAKES.replace("flake", "violate")
    .replace("import os", "from tests.violations import Violation\nimport os")
    .replace("raise AssertionError", "raise Violation")
)

Plant = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Commits files on a base that passed, and runs the gate over them."""
    room = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "ops/gate", room / "ops/gate", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("ops/tiers.py", "ops/test", "ops/help"):
        shutil.copy(REPOSITORY / name, room / name)
    written = {
        "ops/tiers.toml": TIERS,
        "ops/setup": "#!/bin/sh\n",
        "pyproject.toml": PYTEST,
        "tests/violations.py": "class Violation(AssertionError): ...\n",
        "tests/test_passes.py": LOOK + PASSES,
        "tests/test_old.py": PASSES.replace("passes", "flakes"),
        ".gitignore": "var/\n__pycache__/\n",
    }
    _write(room, written)
    (room / "ops/setup").chmod(0o755)
    git(room, "init", "-q")
    base = commit(room)

    def run(
        files: dict[str, str], *words: str, before: dict[str, str] | None = None, committed: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`before`: files that the base has already; `words`: the gate's, else `change`; `committed`: whether the files are."""
        _write(room, before or {})
        at = commit(room) if before else base
        _write(room, files)
        if committed:
            commit(room)
        environment = {
            **os.environ,
            "ONCE": str(tmp_path),
            "PENSTOCK_BASE": at,
            "PENSTOCK_GATE_MEMORY": str(tmp_path / "memory.json"),
            "PENSTOCK_VENV": sys.prefix,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # quicker
        }
        command = [sys.executable, "-m", "ops.gate", *(words or ("change",))]
        return subprocess.run(
            command, cwd=room, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    return run


def _write(room: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        (room / name).write_text(content)


def git(room: Path, *words: str) -> str:
    named = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(room), *words]
    return subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()


def commit(room: Path) -> str:
    git(room, "add", "-A")
    git(room, "commit", "-q", "--allow-empty", "-m", "x")
    return git(room, "rev-parse", "HEAD")


def summary(done: subprocess.CompletedProcess[str]) -> Any:
    """The last line of the output."""
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def why(found: Any) -> dict[str, str | None]:
    return {failure["test"].rpartition("::")[2]: failure["why"] for failure in found["failures"]}


def test_a_failing_test_is_red_after_every_part_has_run_and_both_outputs_are_shown(
    plant: Plant, tmp_path: Path
) -> None:
    planted = {"tests/test_fails.py": FAILS, "tests/test_violates.py": VIOLATES}
    report = tmp_path / "summary.json"
    done = plant({"tests/test_x.py": FLAKES}, "change", "--json", str(report), before=planted)
    found = summary(done)
    assert done.returncode == 1 and not found["green"] and found == json.loads(report.read_text())
    assert why(found) == {
        "test_this_one_fails": "it failed again, alone",
        "test_this_one_violates": "it found a broken invariant: no second run excuses that",
        "test_this_one_flakes": "the change adds or changes this test: it must pass each time",
    }
    assert [(part["part"], part["tests"], len(part["failed"])) for part in found["parts"]] == [
        ("fast", 4, 3),
        ("look", 1, 0),
        ("fast again", 3, 1),
    ]
    assert done.stdout.count("AssertionError: planted") >= 2
    assert (
        "FAILED tests/test_fails.py::test_this_one_fails (fast): it failed again, alone: AssertionError: planted"
        in done.stdout
    )
    assert len(found["slowest"]) == 8


def test_a_flake_is_green_and_named_with_both_outputs_and_new_tests_run_five_times(
    plant: Plant, tmp_path: Path
) -> None:
    planted = {"tests/test_look.py": LOOK + FLAKES}
    done = plant({"tests/test_x.py": PASSES.replace("passes", "new")}, before=planted)
    found = summary(done)
    assert done.returncode == 0 and found["green"], done.stdout
    assert why(found) == {"test_this_one_flakes": None}
    assert [(part["part"], part["tests"]) for part in found["parts"]] == [
        ("fast", 2),
        ("look", 2),
        *((f"fast new {number}", 1) for number in range(1, 6)),
        ("look again", 1),
    ]
    assert (
        "FLAKY tests/test_look.py::test_this_one_flakes (look; both logs above): AssertionError: once per machine"
        in done.stdout
    )
    assert json.loads((tmp_path / "memory.json").read_text())["passed"] == [found["commit"]]


def test_a_new_test_that_fails_in_one_of_five_runs_is_red(plant: Plant) -> None:
    third = FLAKES.replace(
        "if not once.exists():", "once.open('a').write('x')\n    if once.read_text() == 'xxx':"
    )
    found = summary(plant({"tests/test_x.py": third}))
    assert not found["green"]
    assert set(why(found).values()) == {"the change adds or changes this test: it must pass each time"}


def test_three_flakes_are_too_many(plant: Plant) -> None:
    three = {f"tests/test_x{n}.py": FLAKES.replace("flaked", f"flaked{n}") for n in range(3)}
    found = summary(plant({}, before=three))
    assert not found["green"] and found["red"] == ["3 tests flake, 2 at most may"]
    assert set(why(found).values()) == {None}


LISTED = '[[flaky]]\ntest = "tests/test_x{n}.py::test_this_one_flakes"\nsince = {since}\ncause = "a planted file of the machine"\n'


@pytest.mark.parametrize(("days", "green"), [(7, True), (8, False)])
def test_a_listed_flake_is_excused_for_seven_days(plant: Plant, days: int, green: bool) -> None:
    since = datetime.now(UTC).date() - timedelta(days=days)
    listed = "\n".join(LISTED.format(n=n, since=since) for n in range(3))
    three = {f"tests/test_x{n}.py": FLAKES.replace("flaked", f"flaked{n}") for n in range(3)}
    found = summary(plant({"ops/flaky.toml": listed}, before=three))
    assert found["green"] is green
    if not green:
        sentence = f"tests/test_x0.py::test_this_one_flakes waits since {since}, longer than 7 days (a planted file of the machine)"
        assert found["red"][0] == f"ops/flaky.toml: {sentence}: mend the test, or delete it"


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("echo started; kill -9 $$", "it was killed by SIGKILL"),
        ("exit 3", "it ended with status 3, see its output; it printed nothing"),
        ("exit 10", "pytest failed without naming a test; it printed nothing"),
    ],
)
def test_a_part_that_is_killed_or_fails_outside_its_tests_is_red(
    plant: Plant, script: str, trouble: str
) -> None:
    done = plant({"ops/test": f"#!/bin/sh\n{script}\n"})
    found = summary(done)
    assert done.returncode == 1 and not found["green"]
    assert {part["trouble"] for part in found["parts"]} == {trouble}
    assert f"FAILED fast: {trouble}" in done.stdout


def test_tests_that_fill_the_machine_run_alone(plant: Plant) -> None:
    look = "def test_with_some_company(worker_id):\n    assert worker_id != 'master'\n"
    lonely = "import pytest\n@pytest.mark.alone\ndef test_with_no_company(worker_id):\n    assert worker_id == 'master'\n"
    found = summary(plant({}, before={"tests/test_other.py": look, "tests/test_lonely.py": lonely}))
    assert found["green"] and found["parts"][0]["tests"] == 3, found


def test_a_plan_says_what_would_run_and_runs_nothing(plant: Plant, tmp_path: Path) -> None:
    done = plant({"tests/test_fails.py": FAILS}, "plan")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines() if line] == [
        ["fast", "runs:"],
        ["look", "runs:"],
    ]
    assert not (tmp_path / "repository/var").exists()


def test_the_set_up_is_a_part_of_the_summary_and_of_the_time(plant: Plant) -> None:
    found = summary(plant({"ops/test": "#!/bin/sh\n"}, "change", "--started", str(time.time() - 1000)))
    assert found["parts"][0]["part"] == "set-up" and 1000 <= found["parts"][0]["seconds"] <= found["seconds"]


KILLS = (
    LOOK
    + """
import os, pathlib, signal

def test_this_one_ends_the_gate_at_its_first_run():
    once = pathlib.Path(os.environ["ONCE"]) / "killed"
    if not once.exists():
        once.touch()
        os.kill(int(os.environ["GATE_RUN"].partition("-")[0]), signal.SIGKILL)
"""
)


def test_a_run_of_everything_that_was_killed_goes_on_with_the_part_that_had_not_ended(plant: Plant) -> None:
    planted = {"tests/test_fails.py": FAILS, "tests/test_kills.py": KILLS}
    assert plant(planted, "everything").returncode == -signal.SIGKILL
    done = plant({}, "everything", "--go-on", committed=False)
    found = summary(done)
    assert "===== fast (" not in done.stdout and "===== look (" in done.stdout
    assert [(part["part"], part["tests"], len(part["failed"])) for part in found["parts"][:2]] == [
        ("fast", 2, 1),
        ("look", 2, 0),
    ]
    assert "ended before, on this commit, and not repeated: fast" in found["remarks"]
    assert why(found) == {
        "test_this_one_fails": "the change adds or changes this test: it must pass each time"
    }
    changed = plant({"tests/test_old.py": PASSES}, "everything", "--go-on", committed=False)
    assert changed.returncode == 2 and "without changes: commit them" in changed.stderr
    assert "===== fast (" in plant({}, "everything", "--go-on").stdout, "of another commit"
