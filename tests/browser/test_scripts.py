"""The dashboard's JavaScript: linted and of the right types; the vendored files are made from the pinned packages."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier("browser")

REPOSITORY = Path(__file__).resolve().parents[2]
STATIC = REPOSITORY / "orchestrator" / "web" / "static"
MAX_CHARACTERS = 160  # of a line: the formatter breaks code at 120, but no text


def ran(*command: str | Path) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = f"{done.stdout}{done.stderr}"
    assert done.returncode == 0, output
    return output


def test_our_own_javascript_is_linted_formatted_and_of_the_right_types() -> None:
    assert "Checked" in ran(REPOSITORY / "ops/web/check")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import { number } from './format.js';", "noUnusedImports"),
        ('import { number } from "./format.js";\n\nexport const wrong = number("12");', "TS2345"),
    ],
)
def test_errors_in_it_are_found(tmp_path: Path, line: str, wrong: str) -> None:
    copy = shutil.copytree(STATIC, tmp_path / "static")
    (copy / "wrong.js").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=wrong):
        ran(REPOSITORY / "ops/web/check", copy)


def test_no_line_of_it_is_too_long_to_be_read() -> None:
    own = [path for path in STATIC.rglob("*.js") if path.parent.name != "vendor"]
    long = [
        f"{path.relative_to(STATIC)}:{n}"
        for path in own
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_CHARACTERS
    ]
    assert own and long == []


def test_what_is_vendored_is_made_of_the_pinned_packages(tmp_path: Path) -> None:
    ran(REPOSITORY / "ops/web/vendor", tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    there = {path.name: path.read_bytes() for path in (STATIC / "vendor").iterdir() if path.suffix != ".ts"}
    assert made.keys() == there.keys()
    assert [name for name in made if made[name] != there[name]] == []
