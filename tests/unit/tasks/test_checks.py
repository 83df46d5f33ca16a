"""The generated `tests/test.sh`, run by a real bash over files that an agent might leave."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.contracts.events import TestResult
from orchestrator.tasks.suite.checks import OutputCheck, answer_is, file_is, is_absent, module_gives, script
from orchestrator.tasks.verdict import parse_results, parse_reward

Grade = Callable[..., tuple[float, list[TestResult]]]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    return tmp_path / "app"


@pytest.fixture
def grade(tmp_path: Path, app: Path) -> Grade:
    """Run a script of these checks in the work directory; `answer` None means without an answer file."""

    def run(*checks: OutputCheck, answer: str | None = "done") -> tuple[float, list[TestResult]]:
        (tmp_path / "test.sh").write_text(script("a-task", checks))
        if answer is not None:
            (tmp_path / "answer.txt").write_text(answer)
        environment = {
            "PATH": os.environ["PATH"],
            "PENSTOCK_ANSWER": str(tmp_path / "answer.txt"),
            "PENSTOCK_LOGS": str(tmp_path / "logs"),
        }
        ended = subprocess.run(
            ["bash", str(tmp_path / "test.sh")], cwd=app, env=environment, capture_output=True, check=True
        )
        assert ended.stdout == b""
        logs = tmp_path / "logs/verifier"
        return parse_reward((logs / "reward.txt").read_text()).reward, parse_results(
            (logs / "results.json").read_text()
        )

    return run


@pytest.mark.parametrize("answer", ["42", " 42\n", "\n42\r\n"])
def test_an_answer_may_have_white_space_around_it(grade: Grade, answer: str) -> None:
    assert grade(answer_is("42"), answer=answer) == (1.0, [TestResult(name="answer", passed=True)])


@pytest.mark.parametrize("answer", [None, "", "4", "42.", "41 42", "42\n43", "*", "$(echo 42)"])
def test_any_other_answer_fails(grade: Grade, answer: str | None) -> None:
    assert grade(answer_is("42"), answer=answer)[0] == 0.0


@pytest.mark.parametrize("answer", ['"', "\\", 'a"}]\n', "\x00\x01\x1b[31m", "äöü", "x" * 10_000])
def test_results_stay_readable_whatever_the_answer_holds(grade: Grade, answer: str) -> None:
    reward, [result] = grade(answer_is("42"), answer=answer)
    assert reward == 0.0
    assert not result.passed
    assert result.message.startswith("expected 42, got ")
    assert len(result.message) <= 100


def test_a_file_must_be_a_regular_file_with_the_wanted_content(grade: Grade, app: Path) -> None:
    want = file_is("d/f.txt", "oak elm\nfig\n")
    assert grade(want)[0] == 0.0
    (app / "d").mkdir()
    (app / "d/f.txt").write_text("oak elm\nfig")
    assert grade(want)[0] == 1.0
    (app / "d/f.txt").write_text("oak elm\nfig\n\x00")
    assert grade(want)[0] == 0.0
    (app / "g.txt").write_text("oak elm\nfig\n")
    (app / "d/f.txt").unlink()
    (app / "d/f.txt").symlink_to(app / "g.txt")
    assert grade(want)[0] == 0.0
    (app / "d/f.txt").unlink()
    (app / "d/f.txt").mkdir()
    assert grade(want)[0] == 0.0


def test_absent_means_neither_file_nor_folder_nor_dangling_link(grade: Grade, app: Path) -> None:
    assert grade(is_absent("f"))[0] == 1.0
    (app / "f").symlink_to("nowhere")
    assert grade(is_absent("f"))[0] == 0.0


def test_one_failed_check_of_two_gives_no_reward_and_both_results(grade: Grade) -> None:
    reward, results = grade(answer_is("1"), is_absent("f"), answer="2")
    assert reward == 0.0
    assert [(r.name, r.passed) for r in results] == [("answer", False), ("f", True)]


@pytest.mark.parametrize(
    "source",
    [
        "def oak(x): return x*3\n",
        "def oak(x):\n    return 3 * x\n",
        '"""Docs."""\nelm = 3\ndef oak(fig: int) -> int:\n    """Docs."""\n    iron = fig + fig\n    return iron + fig\n',
    ],
)
def test_a_module_may_be_written_in_any_plain_way(grade: Grade, app: Path, source: str) -> None:
    (app / "m.py").write_text(source)
    assert grade(module_gives("m.py", {"oak(0)": 0, "oak(7)": 21, "fig": None}))[0] == 1.0


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def oak(x): return x+3",
        "def oak(x): print(x*3)",
        "def oak(): return x*3",
        "def oak(x): return x*3\nfig = 1",
        "def oak(x): return x*",
        "def oak(x, y=1): return x*3",
        "oak = lambda x: x*3",
        "import os\nopen('ran', 'w').close()\ndef oak(x): return x*3",
        "print('0 21 absent')\nraise SystemExit(0)",
        "def oak(x):\n    open('ran', 'w').close()\n    return x*3",
        "def deco(f): return f\n@deco\ndef oak(x): return x*3",
        "a = 99\n" + "a = a*a\n" * 5000,
        "a = " + "(" * 5000 + "1" + ")" * 5000,
        "a = " + "1+" * 20_000 + "1",
        "def oak(x): return oak(x)",
    ],
)
def test_a_module_is_read_and_never_run(grade: Grade, app: Path, source: str) -> None:
    (app / "m.py").write_text(source)
    for trap in ("ast.py", "operator.py", "sitecustomize.py", "usercustomize.py"):
        (app / trap).write_text("open('ran', 'w').close()\n")
    assert grade(module_gives("m.py", {"oak(0)": 0, "oak(7)": 21, "fig": None}))[0] == 0.0
    assert not (app / "ran").exists()


def test_a_variable_has_the_last_value_assigned(grade: Grade, app: Path) -> None:
    (app / "m.py").write_text("oak = 3\noak = oak + 1\n")
    assert grade(module_gives("m.py", {"oak": 4}))[0] == 1.0
