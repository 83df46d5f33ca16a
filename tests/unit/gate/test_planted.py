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
        return _gate(room, *(words or ("change",)), PENSTOCK_BASE=at)

    return run


def _gate(room: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The gate of a repository, which remembers what it did in `memory.json` next to it."""
    environment = {
        **os.environ,
        "ONCE": str(room.parent),
        "PENSTOCK_GATE_MEMORY": str(room.parent / "memory.json"),
        "PENSTOCK_VENV": sys.prefix,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # quicker
        **variables,
    }
    command = [sys.executable, "-m", "ops.gate", *words]
    return subprocess.run(
        command, cwd=room, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def remembered(room: Path) -> Any:
    """`room`: next to the repository."""
    return json.loads((room / "memory.json").read_text())


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
        ("echo fine", "none of its tests passed (0 were skipped)"),
        ("exit 0", "none of its tests passed (0 were skipped); it printed nothing"),
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


WITH_COMPANY = "def test_with_some_company(worker_id):\n    assert worker_id != 'master'\n"
WITHOUT = "def test_with_no_company(worker_id):\n    assert worker_id == 'master'\n"
LONELY = "import pytest\n@pytest.mark.alone\n" + WITHOUT
HELPED = "import pytest\nfrom tests.fills import EACH\n@pytest.mark.parametrize('fills', EACH)\n" + (
    "def test_with_the_company_it_may_have(fills, worker_id):\n    assert (worker_id == 'master') is fills\n"
)
HELPER = "import pytest\nEACH = [pytest.param(True, marks=[pytest.mark.alone], id='a program fills [it]'), False]\n"


def test_tests_that_fill_the_machine_run_alone_wherever_their_mark_comes_from(plant: Plant) -> None:
    files = {"tests/test_other.py": WITH_COMPANY, "tests/test_lonely.py": LONELY}
    helped = {"tests/test_helped.py": HELPED, "tests/fills.py": HELPER}
    found = summary(plant({}, before=files | helped))
    assert found["green"] and found["parts"][0]["tests"] == 5, found


def test_a_test_that_no_session_of_its_part_runs_is_red(plant: Plant) -> None:
    script = (REPOSITORY / "ops/test").read_text()
    again = '[ ${#alone[@]} -eq 0 ] || pytests "$@" -n 0 "${alone[@]}"'
    assert again in script
    found = summary(
        plant({}, before={"ops/test": script.replace(again, "true"), "tests/test_lonely.py": LONELY})
    )
    assert not found["green"] and found["parts"][0]["trouble"] == (
        "1 tests with the mark `alone` ran in no pytest, such as tests/test_lonely.py::test_with_no_company"
    )


ENDS = LOOK + "import os, signal\n@pytest.mark.alone\ndef test_this_one_ends_pytest():\n    {ends}\n"


@pytest.mark.parametrize(
    ("ends", "trouble"),
    [
        ("os._exit(0)", "pytest 2 of its sessions ended before its last test, with status 0"),
        # next to a test that failed
        ("os._exit(1)", "pytest 2 of its sessions ended before its last test, with status 1"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "it ended with status 1, see its output; pytest 2 of its sessions was killed by SIGSEGV",
        ),
    ],
)
def test_a_pytest_that_ends_before_its_last_test_is_red(plant: Plant, ends: str, trouble: str) -> None:
    planted = {"tests/test_ends.py": ENDS.format(ends=ends), "tests/test_look.py": LOOK + FLAKES}
    found = summary(plant({}, before=planted))
    assert not found["green"] and why(found) == {"test_this_one_flakes": None}
    assert [part["trouble"] for part in found["parts"]] == ["", trouble, ""]


SKIPS = FLAKES.replace("flake", "skip").replace("    if not", "    import pytest\n    if not") + (
    "    pytest.skip('planted')\n"
)


def test_a_skipped_test_is_counted_as_one_and_its_second_run_excuses_nothing(plant: Plant) -> None:
    done = plant({}, before={"tests/test_skips.py": SKIPS})
    found = summary(done)
    assert not found["green"] and why(found) == {"test_this_one_skips": "it had no second run"}
    counts = [(part["part"], part["tests"], len(part["failed"]), part["skipped"]) for part in found["parts"]]
    assert counts == [("fast", 2, 1, 0), ("look", 1, 0, 0), ("fast again", 0, 0, 1)]


def test_a_part_that_did_not_begin_in_time_is_red(plant: Plant, tmp_path: Path) -> None:
    done = plant({}, "change", "--started", str(time.time() - 75 * 60))
    found = summary(done)
    assert done.returncode == 1 and not found["green"]
    late = "did not begin: the limit of 75 minutes was reached"
    assert found["red"] == [f"fast {late}", f"look {late}"]
    assert remembered(tmp_path)["passed"] == []


def test_what_is_not_committed_is_tested_as_a_change_and_does_not_pass_as_the_commit(
    plant: Plant, tmp_path: Path
) -> None:
    planted = {"tests/test_x.py": PASSES.replace("passes", "new")}
    done = plant(planted, committed=False)
    found = summary(done)
    assert found["green"] and found["with_changes"], done.stdout
    assert "fast new 5" in [part["part"] for part in found["parts"]]
    assert done.stdout.splitlines()[-2].endswith(" with changes")
    assert remembered(tmp_path)["passed"] == []


ROTATING = (
    TIERS.replace('[tiers.look]\nwhen = "always"', '[tiers.look]\nwhen = "turns"')
    .replace("chaos", "pool")
    .replace("optional", "turns")
)


def test_a_touched_tier_that_did_not_fit_runs_first_the_next_time(plant: Plant, tmp_path: Path) -> None:
    gate = TIERS[TIERS.index("[tiers.look]") : TIERS.index("[tiers.chaos]")].replace("look", "gate")
    rules = '[[rules]]\npaths = ["a.md"]\ntiers = ["look", "gate"]\n[[rules]]\npaths = ["b.md"]\ntiers = []\n'
    mapped = (ROTATING + gate.replace("always", "turns")).replace("planned = 50", "planned = 60") + rules
    found = summary(plant({"a.md": "a"}, before={"ops/tiers.toml": mapped}))
    assert found["green"], found
    assert [(part["part"], part["why"]) for part in found["parts"]] == [
        ("fast", "always"),
        ("look", "the change touches a.md"),
        ("pool", "its turn"),
    ]
    assert remembered(tmp_path)["owed"] == ["gate"]
    planned = plant({"b.md": "b"}, "plan", before={"c.md": "c"}).stdout.splitlines()
    assert "gate           runs: an earlier change touched it and it did not fit" in planned


def test_the_second_run_of_a_part_is_of_that_part(plant: Plant) -> None:
    mapped = ROTATING.replace("planned = 50\n\n[tiers.pool]", "planned = 50\nparts = 2\n\n[tiers.pool]")
    done = plant({}, before={"ops/tiers.toml": mapped, "tests/test_look.py": LOOK + FLAKES})
    assert [part["part"] for part in summary(done)["parts"]] == ["fast", "look 0/2", "look 0/2 again"]
    again = "./ops/test --tier look --part 0/2 --only tests/test_look.py::test_this_one_flakes"
    assert f"===== look 0/2 again (failed tests, alone): {again}" in done.stdout


@pytest.mark.parametrize(("days", "green"), [(7, True), (8, False)])
def test_a_flake_that_is_on_no_list_is_excused_for_seven_days(
    plant: Plant, tmp_path: Path, days: int, green: bool
) -> None:
    today = datetime.now(UTC).date()
    test, since = "tests/test_look.py::test_this_one_flakes", today - timedelta(days=days)
    kept = {"runs": 3, "passed": [], "flakes": {test: [str(since), str(since)]}}
    (tmp_path / "memory.json").write_text(json.dumps(kept))
    found = summary(plant({}, before={"tests/test_look.py": LOOK + FLAKES}))
    sentence = f"{test} flakes since {since}, longer than 7 days, and is not on the list"
    assert found["green"] is green and why(found) == {"test_this_one_flakes": None}
    assert found["red"] == ([] if green else [f"{sentence}: mend the test, or delete it"])
    assert remembered(tmp_path)["flakes"] == {test: [str(since), str(today)]}


def test_in_a_clone_without_history_everything_that_fits_runs(plant: Plant, tmp_path: Path) -> None:
    plant({"tests/test_x.py": PASSES}, "plan")
    clone = tmp_path / "shallow/clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}/repository", str(clone))
    found = summary(_gate(clone, "change", PENSTOCK_BASE=""))
    assert found["green"] and [part["part"] for part in found["parts"]] == ["fast", "look"]
    assert "the change is unknown: no git, or a clone without enough history" in found["remarks"]


@pytest.mark.parametrize("wrong", ["+5", "1_0", "nan", "-1", "1e400", ""])
def test_a_start_in_another_form_than_seconds_is_refused(plant: Plant, wrong: str) -> None:
    done = plant({}, "change", f"--started={wrong}")
    assert done.returncode == 2
    assert f"argument --started: must be a number from 0 to 1e+12, not {wrong!r}" in done.stderr


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
