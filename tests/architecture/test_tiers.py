"""ops/tiers.toml: every test file has one tier, every path a rule; what `.ci/run` chooses fits into its time and follows the change."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops import tiers
from ops.tiers import Change, Rule, Tier, Tiers, When

REPOSITORY = tiers.REPOSITORY
MAP = tiers.read()
TESTS = tiers.test_files()
SCRIPT = (REPOSITORY / "ops/test").read_text()
ROOMS = (".ci", "agents", "migrations", "ops", "orchestrator", "sandboxes", "tests", "trainer")


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
            wrong += [(here, name) for name in there if f"PENSTOCK_TIER={found[1]}" not in _body(name)]
            assert there, here
    assert wrong == []


def _body(name: str) -> str:
    """The shell function of a tier."""
    found = re.search(rf"^{name}\(\) (\{{ .* \}}$|\{{\n(?:.*\n)*?\}}$)", SCRIPT, re.M)
    assert found, f"ops/test has no function {name}"
    return found[1]


def test_every_tier_has_a_function_and_a_line_in_the_script_and_a_row_in_the_table() -> None:
    documented = set(re.findall(r"^#   (\w+)  ", SCRIPT, re.M))
    assert documented == {*MAP.tiers, "everything"}
    guide = (REPOSITORY / "AGENTS.md").read_text()
    for name in MAP.tiers:
        _body(name)
        row = "`./ops/chaos`" if name == "chaos" else f"--tier {name}`"
        assert name == "fast" or row in guide, name


def test_every_function_that_runs_the_files_of_a_tier_has_some() -> None:
    for name, tier in MAP.tiers.items():
        assert bool(tiers.arguments(MAP, tier, TESTS)) == bool(re.search(r"\btests \d", _body(name))), name


def test_every_glob_fits_a_file() -> None:
    there = [str(file.relative_to(REPOSITORY)) for room in ROOMS for file in (REPOSITORY / room).rglob("*")]
    there += [file.name for file in REPOSITORY.iterdir()]
    globs = [*MAP.everything, *(glob for tier in MAP.tiers.values() for glob in tier.again)]
    globs += [glob for rule in MAP.rules for glob in rule.paths]
    alone = [part for glob in globs for part in _without_braces(glob.removeprefix("!"))]
    assert [glob for glob in alone if not any(tiers.matches(path, [glob]) for path in there)] == []


def test_the_files_for_another_python_import_no_torch() -> None:
    globs = MAP.tiers["pythons"].again
    torch = re.compile(r"^(?:import|from) (?:torch|safetensors|transformers|peft)\b", re.M)
    chosen = [path for path in TESTS if tiers.matches(path, globs)]
    assert chosen and [path for path in chosen if torch.search((REPOSITORY / path).read_text())] == []


def _without_braces(glob: str) -> list[str]:
    found = re.search(r"\{([^}]*)\}", glob)
    return [glob.replace(found[0], each) for each in found[1].split(",")] if found else [glob]


def test_every_path_of_the_repository_has_a_rule() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    product = [path for path in listed.splitlines() if not path.startswith("tests/")]
    assert [
        path for path in product if MAP.rule(path) is None and not tiers.matches(path, MAP.everything)
    ] == []


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("orchestrator/gateway/sessions/tree.py", "gateway"),
        ("orchestrator/gateway/servers/pool.py", "gateway"),
        ("orchestrator/web/static/app.js", "browser"),
        ("orchestrator/queries/batches.py", "look"),
        ("orchestrator/roles/orchestrator.py", "roles"),
        ("orchestrator/bus/nats.py", "roles"),
        ("orchestrator/pool/prune.py", "pool"),
        ("orchestrator/tasks/probes/core.py", "probes"),
        ("orchestrator/tasks/settings.py", "tasks"),
        ("orchestrator/deploy/cluster/size.py", "cluster"),
        ("sandboxes/bubblewrap.py", "sandboxes"),
        ("sandboxes/container/provider.py", "sandboxes"),
        ("trainer/loss/cispo.py", "trainer"),
        ("trainer/serving/engine.py", "gateway"),
        ("trainer/sft/loop.py", "demo"),
        ("migrations/env.py", "pool"),
        ("ops/guides/start.md", "stacks"),
        ("tests/e2e/stack_rig.py", "stacks"),
        ("tests/failpoints/boundaries.py", "failpoints"),
        ("README.md", None),
        ("ops/decisions/0027-tiers-of-ci.md", None),
    ],
)
def test_a_path_concerns_the_tiers_that_test_it_the_most_telling_first(path: str, first: str | None) -> None:
    concerned = [name for name in tiers.touched(MAP, [path]) if name != "fast"]
    assert (
        (first in concerned) if path.startswith("tests/") else (concerned[:1] == ([first] if first else []))
    )


@pytest.mark.parametrize(
    "path", ["ops/tiers.toml", "ops/requirements.lock", "tests/conftest.py", "a/new/room.py"]
)
def test_a_path_that_may_break_anything_and_one_without_a_rule_concern_every_tier(path: str) -> None:
    assert set(tiers.touched(MAP, [path])) == set(MAP.tiers)


def test_a_change_of_the_gate_runs_its_tests_whatever_else_the_change_holds() -> None:
    many = [
        "ops/tiers.toml",
        "agents/scaffolds/find.py",
        "orchestrator/gateway/server.py",
        "ops/gate/verdict.py",
        "trainer/loop.py",
    ]
    plan = tiers.choose(MAP, many, turn=0)
    assert "gate" in [choice.part.tier.name for choice in plan.runs]


GATE = ["ops/tiers.py", *(f"ops/gate/{file.name}" for file in (REPOSITORY / "ops/gate").glob("*.py"))]


def test_the_gate_imports_nothing_of_the_product() -> None:
    roots = set()
    for path in GATE:
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots |= {".".join(name.split(".")[: 2 if name.startswith("ops.") else 1]) for name in names}
    assert roots - sys.stdlib_module_names == {"ops", "ops.gate", "ops.tiers", "psutil", "pytest"}


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        (["pyproject.toml", "orchestrator/gateway/sessions/tree.py"], "gateway"),
        *(
            ([path], "gate")
            for path in [*GATE, ".ci/run", "ops/test", "ops/setup", "ops/tiers.toml", "ops/help"]
        ),
    ],
)
def test_what_a_rule_names_runs_before_the_rest_of_everything_at_each_turn(
    changed: list[str], first: str
) -> None:
    for turn in range(len(MAP.tiers)):
        touched = [choice for choice in tiers.choose(MAP, changed, turn).runs if choice.touched]
        assert touched[0].part.tier.name == first and len(touched) > 1, turn


def test_no_tier_ends_at_its_first_failure() -> None:
    assert re.findall(r"\btests \d.* (?:-x|--exitfirst|--maxfail)\b", SCRIPT) == []


def test_what_a_commit_runs_fits_into_its_minutes() -> None:
    always = sum(tier.planned for tier in MAP.tiers.values() if tier.when is When.ALWAYS)
    assert always + MAP.touched_s + MAP.slice_s <= 25 * 60 and MAP.limit_s == 75 * 60
    taken = [part.tier for part in tiers.slices(MAP)]
    assert [tier.name for tier in taken if tier.planned > MAP.slice_s] == []
    assert [t.name for t in MAP.tiers.values() if t.planned > t.budget] == []


def test_every_slice_of_the_rotation_has_its_turn() -> None:
    rotation = tiers.slices(MAP)
    turns = [tiers.choose(MAP, [], turn).runs[-1].part for turn in range(len(rotation))]
    assert turns == rotation
    assert {part.tier.name for part in rotation} == {n for n, t in MAP.tiers.items() if t.when is When.TURNS}


SMALL = Tiers(
    touched_s=120,
    slice_s=60,
    limit_s=600,
    everything=["setup"],
    tiers={
        "static": Tier(name="static", when=When.ALWAYS, budget=9, planned=5),
        "web": Tier(name="web", when=When.TURNS, budget=90, planned=60),
        "bus": Tier(name="bus", when=When.TURNS, budget=90, planned=50, parts=2),
        "hosts": Tier(name="hosts", when=When.BY_HAND, budget=90, planned=50),
        "far": Tier(name="far", when=When.OPTIONAL, budget=90, planned=50),
    },
    rules=[
        Rule(["product/web/**", "product/*.py"], ["web"]),
        Rule(["product/bus/old/**"], []),
        Rule(["product/bus/**"], ["bus", "hosts", "web"]),
    ],
)


def _runs(changed: list[str] | None, turn: int = 0) -> dict[str, str]:
    return {choice.part.name: choice.why for choice in tiers.choose(SMALL, changed, turn).runs}


def test_without_a_concerned_tier_one_slice_has_its_turn() -> None:
    assert _runs([], 0) == {"static": "always", "web": "its turn"}
    assert _runs([], 1) == {"static": "always", "bus 0/2": "its turn"}
    assert _runs([], 2) == {"static": "always", "bus 1/2": "its turn"}
    assert _runs([], 3) == _runs([], 0)


def test_the_first_rule_that_fits_decides_and_its_first_tiers_run_until_their_time_is_spent() -> None:
    assert _runs(["product/web/page.py"], 1) == {
        "static": "always",
        "web": "the change touches product/web/page.py",
        "bus 0/2": "its turn",
    }
    assert _runs(["product/bus/old/x.py"], 0) == {"static": "always", "web": "its turn"}
    plan = tiers.choose(SMALL, ["product/bus/x.py"], 1)
    assert [choice.part.name for choice in plan.runs] == ["static", "bus 1/2", "bus 0/2", "web"]
    assert [(choice.part.name, choice.why) for choice in plan.left_out] == [
        ("hosts", "the change touches product/bus/x.py, and it is run by hand: ./ops/test --tier hosts")
    ]


def test_a_slice_that_runs_already_gives_its_turn_to_the_next() -> None:
    assert [name for name in _runs(["product/web/page.py"], 0)] == ["static", "web", "bus 0/2"]


@pytest.mark.parametrize("changed", [None, ["setup"], ["nowhere"]])
def test_an_unknown_change_runs_what_fits_beginning_elsewhere_each_time(changed: list[str] | None) -> None:
    assert [name for name in _runs(changed, 0)] == ["static", "web", "bus 0/2", "bus 1/2"]
    plan = tiers.choose(SMALL, changed, 2)
    assert [choice.part.name for choice in plan.runs] == ["static", "bus 0/2", "bus 1/2", "web"]


def test_what_earlier_changes_left_comes_after_the_first_tier_of_a_rule_and_before_the_others() -> None:
    plan = tiers.choose(SMALL, ["product/bus/x.py"], 0, ["gone", "web"])
    assert [(choice.part.name, choice.touched) for choice in plan.runs] == [
        ("static", False),
        ("bus 0/2", True),
        ("bus 1/2", True),
        ("web", True),  # as a slice, with targets that judge
    ]
    plan = tiers.choose(SMALL, [], 0, ["bus 1/2", "web"])
    assert [choice.part.name for choice in plan.runs] == ["static", "bus 1/2", "web", "bus 0/2"]
    plan = tiers.choose(SMALL, ["product/web/page.py"], 1, ["bus 1/2", "bus 0/2"])
    assert [choice.part.name for choice in plan.runs] == ["static", "web", "bus 1/2", "bus 0/2"]
    plan = tiers.choose(SMALL, ["product/web/page.py"], 2, ["bus 0/2", "bus 1/2"])
    assert [choice.part.name for choice in plan.runs] == ["static", "web", "bus 0/2", "bus 1/2"]
    plan = tiers.choose(SMALL, ["setup"], 0)
    assert [choice.part.name for choice in plan.left_out if choice.touched] == []


def test_everything_is_every_tier_but_the_optional_ones() -> None:
    plan = tiers.every(SMALL)
    assert [choice.part.name for choice in plan.runs] == ["static", "web", "bus", "hosts"]
    assert [choice.part.name for choice in plan.left_out] == ["far"]


def test_a_part_is_every_nth_file() -> None:
    whole = tiers.arguments(MAP, MAP.named("faults"), TESTS)
    halves = [tiers.arguments(MAP, MAP.named("faults"), TESTS, f"{at}/2") for at in (0, 1)]
    assert sorted([*halves[0], *halves[1]]) == sorted(whole) and abs(len(halves[0]) - len(halves[1])) <= 1
    for wrong in ("2/2", "x/2", "1", "-1/2"):
        with pytest.raises(ValueError, match="a part is K/N"):
            tiers.arguments(MAP, MAP.named("faults"), TESTS, wrong)


@pytest.mark.parametrize(
    "keys", ['paths = ["x"]', 'paths = ["x"]\ntiers = ["unknown"]', "paths = []\ntiers = []\nmore = 1"]
)
def test_a_wrong_rule_is_refused(keys: str, tmp_path: Path) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text(
        f"touched_s = 1\nslice_s = 1\nlimit_minutes = 1\neverything = []\n[tiers]\n[[rules]]\n{keys}\n"
    )
    with pytest.raises(ValueError, match=r"rules|unknown tier"):
        tiers.read(file)


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


def test_the_change_is_what_differs_from_the_base_or_from_the_commit_of_some_hours_before(
    tmp_path: Path,
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    _git(origin, "init", "-q")
    hour = 3600
    for name, at in (("old", 0), ("lately", 30 * hour), ("now", 31 * hour)):
        _commit(origin, name, at=at)
    change = tiers.changes(origin, None)
    assert change.commit == _git(origin, "rev-parse", "HEAD").strip()
    assert change.base == _git(origin, "rev-parse", "HEAD~2").strip() and change.paths == ["lately", "now"]
    assert tiers.changes(origin, "HEAD~1").paths == ["now"]
    assert tiers.changes(origin, "HEAD~2").paths == ["lately", "now"]
    assert tiers.changes(origin, "not-there") == Change(change.commit)
    (origin / "now").write_text("not committed")
    (origin / "new").write_text("not committed")
    assert tiers.changes(origin, "HEAD").paths == ["new", "now"] and tiers.uncommitted(origin)


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
        assert tiers.changes(clone, None).paths == known
    bare = tmp_path / "bare"
    bare.mkdir()
    assert tiers.changes(bare, None) == Change("")


def _script_room(room: Path, *scripts: str, **stubs: str) -> None:
    """Our own scripts, and stubs by the name of the program, in a directory of their own."""
    for script in (*scripts, "ops/help", "ops/tiers.toml"):
        (room / script).parent.mkdir(exist_ok=True)
        (room / script).write_text((REPOSITORY / script).read_text())
        (room / script).chmod(0o755)
    for name, content in stubs.items():
        file = room / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{content}\n")
        file.chmod(0o755)


def test_ci_makes_a_fresh_environment_and_starts_the_gate_for_the_change(tmp_path: Path) -> None:
    python = "mkdir -p .venv/bin; mv gate .venv/bin/python"
    _script_room(
        tmp_path, ".ci/run", ops__setup=f"[ ! -e .venv ] || exit 7; {python}", gate='echo "$*"; exit 5'
    )
    (tmp_path / ".venv").mkdir()
    done = subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 5 and re.fullmatch(r"-m ops.gate change --started \d+\n", done.stdout), done


def test_ci_says_that_nothing_was_tested_where_the_set_up_fails(tmp_path: Path) -> None:
    _script_room(tmp_path, ".ci/run", ops__setup="echo no network >&2; exit 3")
    done = subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert (
        done.stderr
        == "no network\nthe gate is RED: the set-up failed (status 3), see above; nothing was tested\n"
    )


CHECKS = ["ruff check .", "ruff format --check .", "mypy ", "lint-imports ", "python -m pytest"]


@pytest.mark.parametrize("fails", CHECKS)
def test_ops_test_fails_where_any_of_its_checks_fails_and_runs_the_others(tmp_path: Path, fails: str) -> None:
    recorded = f'echo "ran $(basename "$0") $*"; case "$(basename "$0") $*" in "{fails}"*) exit 1 ;; *budget*) echo 720 ;; esac'
    names = ("python", "ruff", "mypy", "lint-imports")
    _script_room(tmp_path, "ops/test", ops__setup="", **{f".venv__bin__{name}": recorded for name in names})
    environment = {**os.environ, "PENSTOCK_VENV": str(tmp_path / ".venv")}
    done = subprocess.run(
        [tmp_path / "ops/test"], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == (10 if fails == "python -m pytest" else 1), done.stdout + done.stderr
    assert [check for check in CHECKS if f"ran {check}" not in done.stdout] == []


def test_slowness_is_at_least_1() -> None:
    assert tiers.slowness() >= 1
