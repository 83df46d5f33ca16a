"""Each form that pays without the work is named by its rule, and a sound form for the same purpose is not named."""

import ast
import re
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.traps import Rule, traps_of
from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.python_tree import nodes_of, parents_of
from orchestrator.tasks.traps.shell import shell_traps
from tests.unit.tasks import trap_pairs_of_word as of_word
from tests.unit.tasks import trap_pairs_of_word_in_python as of_word_in_python
from tests.unit.tasks.trap_pairs import PYTHON, SHELL


def of_shell(text: str) -> list[tuple[Rule, str]]:
    return [(trap.rule, trap.text) for trap in shell_traps("tests/test.sh", text, frozenset())]


def of_python(text: str) -> list[tuple[Rule, str]]:
    return [(trap.rule, trap.text) for trap in python_traps("tests/check.py", text, frozenset())]


def task(**files: str) -> Task:
    body = {"task.toml": "", "instruction.md": "x", **{name: text for name, text in files.items()}}
    return Task.from_files({path: text.encode() for path, text in body.items()})


@pytest.mark.parametrize(("trap", "rule", "safe"), SHELL + of_word.SHELL)
def test_a_form_of_shell_that_pays_without_the_work_is_named_and_its_safe_twin_is_not(
    trap: str, rule: Rule, safe: str
) -> None:
    assert rule in [found for found, _ in of_shell(trap)], of_shell(trap)
    assert of_shell(safe) == []


PRINTED = f"got=$({of_word.UNTRUSTED}./prog | head -c 100)"
READ = re.compile(r"got=\$\((?:head -c 100|cat) out\)")
OF_OUTPUT = [
    (READ.sub(lambda _: PRINTED, trap), rule, READ.sub(lambda _: PRINTED, safe))
    for trap, rule, safe in SHELL + of_word.SHELL
    if READ.search(trap)
]


@pytest.mark.parametrize(("trap", "rule", "safe"), OF_OUTPUT)
def test_what_a_program_under_the_wrapper_printed_is_the_agents_text(
    trap: str, rule: Rule, safe: str
) -> None:
    assert rule in [found for found, _ in of_shell(trap)], of_shell(trap)
    assert of_shell(safe) == []


WITHOUT_LIMITS = (
    "import subprocess, sys\ntry: sys.exit(subprocess.call(sys.argv[2:]))\nexcept OSError: sys.exit(127)\n"
)
PAYING = [safe for _, _, safe in SHELL + of_word.SHELL if "ok=1" in safe and re.search(r"\bout\b", safe)]


@pytest.mark.parametrize("content", [None, "", "42\n"], ids=["missing", "empty", "right"])
def test_no_safe_twin_pays_for_a_missing_or_an_empty_answer(content: str | None, tmp_path: Path) -> None:
    for place in ("tests", "tmp", "app", "logs/verifier"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("want", "expected", "original", "x", "w", "o"):
        (tmp_path / "tests" / name).write_text("42\n")
    (tmp_path / "tests/out.md5").write_text("50a2fabfdd276f573ff97ace8b11c5f4  -\n")
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(WITHOUT_LIMITS)
    paid = []
    for safe in PAYING:
        out = tmp_path / "app/out"
        out.unlink(missing_ok=True)
        if content is not None:
            out.write_text(content)
        script = re.sub(r"(?<![\w.])/(tests|tmp|app|logs)\b", rf"{tmp_path}/\1", safe)
        done = subprocess.run(
            ["bash", "-c", f"{script}\necho ok:$ok"],
            cwd=tmp_path / "app",
            env={"PATH": "/usr/bin:/bin", "PENSTOCK_UNTRUSTED": str(wrapper), "want": "42"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        paid += [safe] if done.stdout.endswith(b"ok:1\n") else []
    if content:
        assert len(paid) > 20
    else:
        assert paid == []


@pytest.mark.parametrize(
    ("trap", "rule", "safe"),
    PYTHON
    + [(of_word_in_python.START + t, r, of_word_in_python.START + s) for t, r, s in of_word_in_python.PYTHON],
)
def test_a_form_of_python_that_pays_without_the_work_is_named_and_its_safe_twin_is_not(
    trap: str, rule: Rule, safe: str
) -> None:
    assert rule in [found for found, _ in of_python(trap)], of_python(trap)
    assert of_python(safe) == []


def test_the_time_for_long_tests_does_not_grow_with_the_square_of_their_length() -> None:
    group = "comm -23 /tests/w{0} o{0} > /tmp/m{0}\n[ -s /tmp/m{0} ] || cmp -s o{0} /tests/x{0} && ok=1\n"
    items = "def test_{0}():\n    assert 'a' in data['k{0}']\n"
    began = time.process_time()
    of_shell("".join(map(group.format, range(200))))
    named = of_python(
        "import json\ndata = json.load(open('/app/o'))\n" + "".join(map(items.format, range(400)))
    )
    assert len(named) == 400
    assert time.process_time() - began < 5


def test_a_source_is_walked_once_for_all_rules_and_no_node_is_left_out() -> None:
    source = "import json\nfor x in json.load(open('/app/o')):\n    assert 'a' in x and -x['k'] <= 3\n"
    before = (nodes_of.cache_info().misses, parents_of.cache_info().misses)
    python_traps("tests/check.py", source, frozenset())
    assert (nodes_of.cache_info().misses, parents_of.cache_info().misses) == (before[0] + 1, before[1] + 1)
    tree = ast.parse(source)
    walked = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert [*nodes_of(tree)] == walked


SCRIPT = "mkdir -p /logs/verifier\n{}\necho $ok > /logs/verifier/reward.txt\n"
PICKLE = "import pickle\npickle.load(open('out', 'rb'))\n"
FILES: list[tuple[dict[str, str], str, Rule]] = [
    ({"tests/check": "#!/usr/bin/env python3\n" + PICKLE}, "/tests/check", Rule.PROGRAM_TEXT),
    ({"tests/check.txt": PICKLE}, "python3 -I /tests/check.txt", Rule.PROGRAM_TEXT),
    ({"tests/lib": 'eval "$(cat out)"\n'}, ". /tests/lib", Rule.PROGRAM_TEXT),
    ({"tests/lib.inc": "./prog\n"}, "bash /tests/lib.inc", Rule.AGENT_PROGRAM),
    ({"tests/check.js": "exec('node sol.js')\n"}, "node /tests/check.js", Rule.UNREADABLE),
    ({"tests/check.rb": "#!/usr/bin/ruby\nputs 1\n"}, "/tests/check.rb", Rule.UNREADABLE),
    ({"tests/check.py": "print 'x'\n" + PICKLE}, "python3 -I /tests/check.py", Rule.UNREADABLE),
    ({"tests/lib.sh": "if then ((\n"}, ". /tests/lib.sh", Rule.UNREADABLE),
    ({"tests/large.py": "#" * (1 << 20) + "\n" + PICKLE}, "python3 -I /tests/large.py", Rule.UNREADABLE),
]


@pytest.mark.parametrize(("files", "line", "rule"), FILES)
def test_every_program_of_the_tests_is_read_or_named_as_not_read(
    files: dict[str, str], line: str, rule: Rule
) -> None:
    found = traps_of(task(**{"tests/test.sh": SCRIPT.format(line), **files}))
    assert rule in [trap.rule for trap in found]


def test_a_program_in_another_language_is_allowed_with_a_reason_and_data_are_not_programs() -> None:
    allowed = SCRIPT.format("node /tests/check.js # penstock-allow PT100: it compares two files")
    assert traps_of(task(**{"tests/test.sh": allowed, "tests/check.js": "x"})) == []
    data = SCRIPT.format("python3 -I /tests/check.py /tests/want.json && ok=1")
    assert (
        traps_of(task(**{"tests/test.sh": data, "tests/check.py": "x = 1\n", "tests/want.json": "{]"})) == []
    )


def test_a_function_of_another_script_of_the_tests_is_not_an_unknown_command() -> None:
    line = 'same "$(head -c 100 out)" 42 && ok=1'
    files = {"tests/lib.sh": 'same() { [ "$1" = "$2" ]; }\n'}
    assert [t.rule for t in traps_of(task(**{"tests/test.sh": SCRIPT.format(line)}))] == [Rule.UNKNOWN]
    assert traps_of(task(**{"tests/test.sh": SCRIPT.format(". /tests/lib.sh\n" + line), **files})) == []


def test_python_in_a_script_that_is_not_python_3_is_named_at_its_line() -> None:
    [(rule, text)] = of_shell("date\npython3 -I -c 'print 1'\n")
    assert rule == Rule.UNREADABLE and "print 1" in text
