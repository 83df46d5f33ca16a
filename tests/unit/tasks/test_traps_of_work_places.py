"""Traps of a task whose work directory is where other tests keep their own files: the same as in `/app`."""

import pytest

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.traps import Rule, Trap, traps_of
from tests.unit.tasks import trap_pairs_of_word as of_word
from tests.unit.tasks import trap_pairs_of_word_in_python as of_word_in_python
from tests.unit.tasks.trap_pairs import PYTHON, SHELL

WORKS = ("/tmp", "/root", "/home/agent", "/home", "/tmp/project")
SHELLS = [pair for pair in SHELL + of_word.SHELL if "/app" in pair[0]]
PYTHONS = [pair for pair in PYTHON if "/app" in pair[0]]
PYTHONS += [
    (of_word_in_python.START + t, r, of_word_in_python.START + s)
    for t, r, s in of_word_in_python.PYTHON
    if "/app" in t
]


def found(work: str, name: str, text: str, toml: str = "", dockerfile: str | None = None) -> list[Trap]:
    files = {
        "task.toml": toml,
        "instruction.md": "x",
        "environment/Dockerfile": f"FROM debian:12\nWORKDIR {work}\n" if dockerfile is None else dockerfile,
        "tests/test.sh": "true\n",
        name: text.replace("/app", work),
    }
    traps = traps_of(Task.from_files({path: body.encode() for path, body in files.items()}))
    return [trap for trap in traps if trap.file == name]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(
    ("name", "pairs"), [("tests/test.sh", SHELLS), ("tests/check.py", PYTHONS)], ids=["shell", "python"]
)
def test_a_form_that_pays_without_the_work_is_named_in_every_work_directory(
    work: str, name: str, pairs: list[tuple[str, Rule, str]]
) -> None:
    assert len(pairs) > 5
    for trap, rule, safe in pairs:
        traps = found(work, name, trap)
        assert rule in [each.rule for each in traps], (trap, traps)
        lines = trap.replace("/app", work).splitlines()
        assert all(each.text == lines[each.line - 1].strip() for each in traps if each.line <= len(lines))
        if "/tmp" not in safe and "/root" not in safe and "/home" not in safe:
            assert found(work, name, safe) == found("/app", name, safe), safe


def test_where_the_work_directory_lies_is_read_as_the_sandbox_does() -> None:
    text, script = "cp /tmp/score /logs/verifier/reward.txt\n", "tests/test.sh"
    (named,) = found("/tmp", script, text)
    assert (named.rule, named.text) == (Rule.PAID, text.strip())
    assert found("/srv", script, text) == [], "the tests' own file"
    for written in ("/tmp", "/tmp/", "tmp"):
        assert found("/srv", script, text, f'[environment]\nworkdir = "{written}"\n') == [named]
    separate = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\nworkdir = "/tmp"\n'
    assert found("/srv", script, text, separate) == [named]
    assert found("/tmp", script, text, dockerfile="FROM debian:12\n") == []
