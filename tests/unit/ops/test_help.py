"""The scripts of ops describe themselves, and refuse what they do not know, before they set anything up."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(
    str(path.relative_to(REPOSITORY))
    for room in ("ops", ".ci", "ops/web", "ops/sglang_cpu")
    for path in (REPOSITORY / room).iterdir()
    if path.is_file() and os.access(path, os.X_OK)
)
NONE = "takes no arguments"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts alone, without an environment. A set-up or an apt that starts leaves the file `started`."""
    place = tmp_path_factory.mktemp("bare")
    for script in [*SCRIPTS, "ops/help", "ops/tiers.toml", "ops/tiers.py"]:
        (place / script).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / script, place / script)
    return place


def run(place: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "PENSTOCK_VENV": str(place / ".venv")}
    return subprocess.run(
        [f"./{script}", *words], cwd=place, env=environment, text=True, capture_output=True, timeout=60
    )


def files(place: Path) -> set[str]:
    return {str(path) for path in place.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_the_comment_at_its_top_and_does_nothing_else(
    bare: Path, script: str, option: str
) -> None:
    before = files(bare)
    done = run(bare, script, option)
    first = (
        (REPOSITORY / script)
        .read_text()
        .splitlines()[1]
        .removeprefix("# ")
        .removeprefix('"""')
        .removesuffix('"""')
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(first[:60]) and "set -" not in done.stdout
    assert files(bare) == before


@pytest.mark.parametrize("words", [["--tier", "fast", "--help"], ["--dry-benches", "-h"]])
def test_the_test_script_prints_its_own_help_after_its_options_too(bare: Path, words: list[str]) -> None:
    done = run(bare, "ops/test", *words)
    assert done.returncode == 0 and done.stdout == run(bare, "ops/test", "--help").stdout


@pytest.mark.parametrize(
    ("script", "words", "sentence"),
    [
        *(
            (script, ["--quick"], NONE)
            for script in SCRIPTS
            if "ARGUMENTS=none" in (REPOSITORY / script).read_text() or script == "ops/imports"
        ),
        ("ops/setup", [""], NONE),
        ("ops/bench", [], "unknown benchmark ''; known: gateway, "),
        ("ops/bench", ["pools", "--small"], "unknown benchmark 'pools'; known: gateway, "),
        ("ops/lock", ["--keep", "x"], "ops/lock takes --keep alone, not: --keep x"),
        ("ops/test", ["--tier"], "--tier needs a name"),
        ("ops/test", ["--tier", "fst"], "unknown tier 'fst'; known: everything static fast "),
        ("ops/test", ["--tier", "."], "unknown tier '.'"),
        ("ops/test", ["--tier", "fast static"], "unknown tier 'fast static'"),
        (
            "ops/test",
            ["--tier", "pool", "--part", "4/4"],
            "--part is K/N with 0 <= K < N, such as 0/4, not '4/4'",
        ),
        ("ops/test", ["--tier", "pool", "--part", "a/4"], "not 'a/4'"),
        ("ops/test", ["--tier", "pool", "--part", "-1/4"], "not '-1/4'"),
        ("ops/test", ["--tier", "pool", "--part", "09/9"], "not '09/9'"),
        ("ops/test", ["--tier", "fast", "--part", "0/4"], "--part has no effect on fast"),
        ("ops/test", ["--part", "0/4"], "--part has no effect on static and fast"),
        ("ops/test", ["--tier", "everything", "--only", "tests/x.py"], "do not go with everything"),
    ],
)
def test_what_a_script_does_not_know_is_refused_in_one_sentence_before_any_set_up(
    bare: Path, script: str, words: list[str], sentence: str
) -> None:
    before = files(bare)
    done = run(bare, script, *words)
    assert done.returncode != 0 and sentence in done.stderr and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and files(bare) == before


def test_a_benchmark_prints_the_help_of_its_module_or_of_the_script_without_an_environment(
    bare: Path,
) -> None:
    done = run(bare, "ops/bench", "web", "--small", "--help")
    assert done.returncode == 0 and done.stdout.startswith("ops/bench NAME") and not (bare / ".venv").exists()
