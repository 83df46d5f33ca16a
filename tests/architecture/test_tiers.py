"""ops/tiers.toml is the map of ./ops/test: every test file has one tier; `.ci/run --touched` fits into its time and follows the change."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from ops import tiers
from ops.tiers import Tier, Tiers, When

REPOSITORY = tiers.REPOSITORY
MAP = tiers.read()
TESTS = tiers.test_files()
SCRIPT = (REPOSITORY / "ops/test").read_text()
ROOMS = (".ci", "agents", "migrations", "ops", "orchestrator", "sandboxes", "tests", "trainer")
ODD, EVEN = "00000001", "00000000"  # beginnings of hashes


def test_every_test_file_is_of_one_tier() -> None:
    assert sorted(path for paths in tiers.owned(MAP, TESTS).values() for path in paths) == TESTS


def test_an_unknown_tier_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text('pytestmark = pytest.mark.tier("quick")\n')
    with pytest.raises(ValueError, match="unknown tier 'quick'; known: static, fast"):
        tiers.owned(MAP, ["test_x.py"], tmp_path)


def test_a_directory_that_only_one_tier_collects_has_no_file_of_another() -> None:
    owned = tiers.owned(MAP, TESTS)
    wrong = []
    for conftest in (REPOSITORY / "tests").rglob("conftest.py"):
        found = re.search(r'collect_ignore_glob = .*"PENSTOCK_TIER"\) == "(\w+)"', conftest.read_text())
        if found:
            here = f"{conftest.parent.relative_to(REPOSITORY)}/"
            there = {name for name, paths in owned.items() for path in paths if path.startswith(here)}
            wrong += [(here, name) for name in there if f"PENSTOCK_TIER={found[1]} " not in _body(name)]
            assert there, here
    assert wrong == []


def _body(name: str) -> str:
    """The shell function of a tier."""
    found = re.search(rf"^{name}\(\) (\{{ .* \}}$|\{{\n(?:.*\n)*?\}}$)", SCRIPT, re.M)
    assert found, f"ops/test has no function {name}"
    return found[1]


def test_every_tier_has_a_function_and_a_line_in_the_script_and_a_row_in_the_table() -> None:
    documented = set(re.findall(r"^#   (\w+)  ", SCRIPT, re.M))
    assert documented == set(MAP.tiers)
    guide = (REPOSITORY / "AGENTS.md").read_text()
    for name in MAP.tiers:
        _body(name)
        row = "`./ops/chaos`" if name == "chaos" else f"--tier {name}`"
        assert name == "fast" or row in guide, name


def test_every_function_that_runs_the_files_of_a_tier_has_some() -> None:
    for name, tier in MAP.tiers.items():
        assert bool(tiers.arguments(MAP, tier, TESTS)) == ("${chosen[@]}" in _body(name)), name


def test_every_glob_fits_a_file() -> None:
    there = [str(file.relative_to(REPOSITORY)) for room in ROOMS for file in (REPOSITORY / room).rglob("*")]
    there += [file.name for file in REPOSITORY.iterdir()]
    globs = [*MAP.everything, *(g for t in MAP.tiers.values() for g in (*t.again, *t.paths))]
    alone = [part for glob in globs for part in _without_braces(glob.removeprefix("!"))]
    assert [glob for glob in alone if not any(tiers.matches(path, [glob]) for path in there)] == []


def _without_braces(glob: str) -> list[str]:
    found = re.search(r"\{([^}]*)\}", glob)
    return [glob.replace(found[0], each) for each in found[1].split(",")] if found else [glob]


def test_all_that_ci_may_run_fits_into_its_time() -> None:
    planned = {name: t.planned for name, t in MAP.tiers.items() if t.when in (When.ALWAYS, When.TURNS)}
    assert sum(planned.values()) < MAP.limit_s == 75 * 60, planned
    assert [name for name, t in MAP.tiers.items() if t.planned > t.budget * len(t.runs)] == []


def test_every_commit_passes_ops_test_the_gateway_the_tasks_the_trainer_and_the_failpoints() -> None:
    even, odd = (
        {
            command
            for choice in tiers.choose(MAP, half, [])
            if choice.runs
            for command in choice.tier.commands()
        }
        for half in (EVEN, ODD)
    )
    tier = "./ops/test --tier"
    always = {f"{tier} {name}" for name in ("gateway", "tasks", "trainer")}
    assert even & odd == {"./ops/test", *always, *(f"{tier} failpoints --rotation {n}/2" for n in (0, 1))}
    assert "static; fast " in SCRIPT, "what ./ops/test runs without a tier"


def test_two_turns_run_all_that_takes_turns_and_cost_about_the_same() -> None:
    first, second = tiers.turns(MAP)
    assert first | second == {name for name, t in MAP.tiers.items() if t.when is When.TURNS}
    assert not first & second
    costs = [sum(MAP.tiers[name].planned for name in half) for half in (first, second)]
    assert max(costs) <= 1.25 * min(costs), costs


SMALL = Tiers(
    600,
    ["setup"],
    {
        "static": Tier(name="static", when=When.ALWAYS, budget=9, planned=5),
        "web": Tier(
            name="web",
            when=When.TURNS,
            budget=90,
            planned=60,
            paths=["product/web/**", "product/*.py"],
        ),
        "bus": Tier(name="bus", when=When.TURNS, budget=90, planned=50, paths=["product/bus/**"]),
        "hosts": Tier(name="hosts", when=When.BY_HAND, budget=90, planned=50, paths=["product/bus/**"]),
        "far": Tier(name="far", when=When.OPTIONAL, budget=90, planned=50),
    },
)


def _runs(commit: str, changed: list[str] | None, *, everything: bool = False) -> dict[str, str]:
    return {c.tier.name: c.why for c in tiers.choose(SMALL, commit, changed, everything=everything) if c.runs}


def test_a_tier_runs_where_the_commit_touches_what_it_tests_and_else_at_its_turn() -> None:
    assert _runs(EVEN, []) == {"static": "always", "web": "its turn"}
    assert _runs(ODD, []) == {"static": "always", "bus": "its turn"}
    assert _runs(ODD, ["product/web/page.py"])["web"] == "the change touches product/web/page.py"
    assert _runs(ODD, ["product/main.py"])["web"] == "the change touches product/main.py"
    assert "web" not in _runs(ODD, ["product/other/page.py"])
    assert set(_runs(ODD, ["setup"])) == {"static", "web", "bus"}


def test_all_ci_tiers_run_if_the_change_is_unknown_and_the_manual_tiers_if_all_are_requested() -> None:
    assert set(_runs(ODD, None)) == set(_runs("", None)) == {"static", "web", "bus"}
    assert set(_runs(ODD, [], everything=True)) == {"static", "web", "bus", "hosts"}


def test_a_tier_that_is_run_by_hand_says_so_where_the_change_touches_it() -> None:
    why = {c.tier.name: c.why for c in tiers.choose(SMALL, ODD, ["product/bus/x.py"])}
    assert why["hosts"].endswith("the change touches product/bus/x.py: run it with ./ops/test --tier hosts")


def test_what_a_test_uses_belongs_to_its_tier(tmp_path: Path) -> None:
    web = tmp_path / "tests/web"
    web.mkdir(parents=True)
    (web / "test_page.py").write_text(
        'pytestmark = pytest.mark.tier("web")\nfrom tests.web.near_rig import near\n'
    )
    (web / "near_rig.py").write_text("from tests.web.far_rig import far\n")
    (web / "far_rig.py").write_text("far = 1\n")
    (web / "unused_rig.py").write_text("")
    for name in ("test_page", "near_rig", "far_rig", "conftest"):
        path = f"tests/web/{name}.py"
        assert tiers.touched(SMALL, [path], tmp_path) == {"web": path}
    assert tiers.touched(SMALL, ["tests/web/unused_rig.py"], tmp_path) == {}


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/**", "a/b/c", True),
        ("a/t_{x,y_*}.py", "a/t_y_z.py", True),
        ("a/t_{x,y_*}.py", "a/t_z.py", False),
        ("a.b", "a-b", False),
    ],
)
def test_a_star_stays_in_its_directory_and_two_do_not(glob: str, path: str, fits: bool) -> None:
    assert tiers.matches(path, [glob]) is fits
    assert not tiers.matches(path, [glob, f"!{path}"])


def _git(where: Path, *words: str, at: int = 0) -> str:
    when = f"{1_700_000_000 + at} +0000"
    environment = {
        "GIT_COMMITTER_DATE": when,
        "GIT_AUTHOR_DATE": when,
        "HOME": str(where),
        "PATH": "/usr/bin:/bin",
    }
    named = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(where)]
    return subprocess.run(
        [*named, *words], env=environment, check=True, capture_output=True, text=True
    ).stdout


def _commit(where: Path, name: str, *, at: int) -> None:
    (where / name).write_text(name)
    _git(where, "add", name)
    _git(where, "commit", "-q", "-m", name, at=at)


def test_the_change_is_what_differs_from_the_base_or_the_commits_of_the_hours_before(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    _git(origin, "init", "-q")
    hour = 3600
    for name, at in (("old", 0), ("lately", 30 * hour), ("now", 31 * hour)):
        _commit(origin, name, at=at)
    commit, changed = tiers.changes(origin, None)
    assert commit == _git(origin, "rev-parse", "HEAD").strip() and changed == ["lately", "now"]
    assert tiers.changes(origin, "HEAD~1")[1] == ["now"]
    assert tiers.changes(origin, "HEAD~2")[1] == ["lately", "now"]
    assert tiers.changes(origin, "not-there") == (commit, None)


def test_a_shallow_clone_that_does_not_reach_far_enough_and_a_directory_without_git_know_no_change(
    tmp_path: Path,
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    _git(origin, "init", "-q")
    for number in range(3):
        _commit(origin, f"file{number}", at=3600 * 20 * number)
    for depth, known in (("1", None), ("2", ["file2"])):
        clone = tmp_path / f"clone{depth}"
        _git(tmp_path, "clone", "-q", "--depth", depth, f"file://{origin}", str(clone))
        assert tiers.changes(clone, None)[1] == known
    bare = tmp_path / "bare"
    bare.mkdir()
    assert tiers.changes(bare, None) == ("", None)


def test_ci_runs_the_commands_that_fit_into_its_time_and_stops_at_the_first_that_fails(
    tmp_path: Path,
) -> None:
    for room in (".ci", "ops"):
        (tmp_path / room).mkdir()
    (tmp_path / ".ci/run").write_text((REPOSITORY / ".ci/run").read_text())
    tests = ((0, "one"), (4600, "slow"), (9, "two --rotation 0/2"), (0, "three"))
    printed = [f"echo {needed} ./ops/test --tier {rest}" for needed, rest in tests]
    chosen = ["#!/bin/sh", 'if [ "$2" = limit ]; then echo 4500; exit; fi', *printed]
    (tmp_path / "chosen").write_text("\n".join(chosen))
    (tmp_path / "chosen").chmod(0o755)
    (tmp_path / "ops/setup").write_text("#!/bin/sh\nmkdir -p .venv/bin; mv chosen .venv/bin/python\n")
    (tmp_path / "ops/test").write_text('#!/bin/sh\ncat; echo "$*" >> ran; [ "$2" != two ]\n')
    for script in (".ci/run", "ops/setup", "ops/test"):
        (tmp_path / script).chmod(0o755)
    done = subprocess.run(
        [tmp_path / ".ci/run", "--touched"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode != 0, done.stderr
    assert (tmp_path / "ran").read_text().splitlines() == ["--tier one", "--tier two --rotation 0/2"]
    assert "are left: ./ops/test --tier slow" in done.stdout


def test_ci_alone_makes_a_fresh_environment_and_runs_ops_test(tmp_path: Path) -> None:
    for room in (".ci", "ops", ".venv"):
        (tmp_path / room).mkdir()
    (tmp_path / ".ci/run").write_text((REPOSITORY / ".ci/run").read_text())
    (tmp_path / "ops/test").write_text('#!/bin/sh\necho "$#"; [ ! -e .venv ] && exit 7\n')
    for script in (".ci/run", "ops/test"):
        (tmp_path / script).chmod(0o755)
    done = subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (7, "0\n"), done.stderr


@pytest.mark.parametrize(
    "fails", ["ruff check .", "ruff format --check .", "mypy ", "lint-imports ", "python -m pytest"]
)
def test_ops_test_fails_where_any_of_its_checks_fails(tmp_path: Path, fails: str) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "ops/test").write_text(SCRIPT)
    (tmp_path / "ops/setup").write_text("#!/bin/sh\n")
    check = f'#!/bin/sh\ncase "$(basename "$0") $*" in "{fails}"*) exit 1 ;; *budget*) echo 720 ;; esac\n'
    names = ("python", "ruff", "mypy", "lint-imports")
    for name in names:
        (tmp_path / ".venv/bin" / name).write_text(check)
    for script in ("ops/setup", "ops/test", *(f".venv/bin/{name}" for name in names)):
        (tmp_path / script).chmod(0o755)
    environment = {**os.environ, "PENSTOCK_VENV": str(tmp_path / ".venv")}
    done = subprocess.run(
        [tmp_path / "ops/test"], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1, done.stdout + done.stderr


def test_a_slow_machine_plans_longer_and_never_leaves_out_what_always_runs() -> None:
    chosen = list(tiers.choose(SMALL, ODD, None))
    assert list(tiers.lines(chosen, f"{ODD}00000000", 2.0)) == [
        "0 ./ops/test --tier static",
        "120 ./ops/test --tier web",
        "100 ./ops/test --tier bus",
    ]
    other = list(tiers.lines(chosen, f"{ODD}00000001", 1.0))
    assert [line.split()[-1] for line in other] == ["static", "bus", "web"]
    every = tiers.lines(chosen, ODD, 2.0, everything=True)
    assert {line.split()[0] for line in every} == {"0"}
    assert tiers.slowness() >= 1
