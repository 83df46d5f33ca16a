"""Writes below /tests, which is read-only: such a write fails, often without a word."""

import pytest

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.traps import Rule, traps_of

SETTINGS = '[verifier]\nenv = {TEST_DIR = "/tests"}\n'


def lines(script: str, settings: str = "") -> list[int]:
    """The lines of tests/test.sh with the rule."""
    files = {"task.toml": settings, "instruction.md": "x", "tests/test.sh": script}
    task = Task.from_files({path: text.encode() for path, text in files.items()})
    return [trap.line for trap in traps_of(task) if trap.rule is Rule.READ_ONLY]


@pytest.mark.parametrize(
    "line",
    [
        "sed -i 's/@Disabled//g' /tests/A.java || true",
        "sed -i.bak s/a/b/ /tests/a",
        "sed -n -e s/a/b/ --in-place=.x /tests/a",
        "perl -pi -e s/a/b/ /tests/a.t",
        "find /tests -name '*.java' -exec sed -i s/@Disabled// {} + || true",
        "find /tests/x -type f -print0 | xargs -0 sed -i s/a/b/ || true",
        "find /tests -name '*.pyc' -delete",
        "echo x > /tests/a",
        "echo x >> /tests/deep/a",
        "date | tee -a /tests/log",
        "cp -r /opt/node_modules /tests",
        "cp /opt/a '/tests/b'",
        "mv /tests/a /tmp/a",
        "ln -s /opt/x /tests/x",
        "rm -rf /tests/slow",
        "timeout 5 touch /tests/a",
        "bash -c 'echo x > /tests/a'",
        "cd /tests && sed -i s/a/b/ a.py",
        "cd /tests; echo x > a",
        'cd "$(dirname "$0")"; echo x > a',
        'HERE=/tests; sed -i s/a/b/ "$HERE/a.py"',
        'D="${TEST_DIR:-/tests}"; sed -i s/a/b/ "$D/a.py"',
        'sed -i s/a/b/ "${TEST_DIR:-/tests}/a.py"',
    ],
)
def test_a_write_below_the_tests_is_named(line: str) -> None:
    assert lines(f"true\n{line}\n") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "sed s/i/b/ /tests/a > /tmp/a",
        "sed -ne s/a/b/p /tests/a",
        "sed -i s/a/b/ /tmp/a",
        "perl -I /tests/lib /tests/a.pl",
        "find /tests -name '*.sh' -exec bash {} +",
        "find /tests -type f | xargs cat",
        "find /tests -type f | xargs -I{} cp {} /tmp",
        "cp -r /tests/a /tests/b /tmp",
        "find . -name /tests -exec sed -i s/a/b/ {} +",
        "mkdir -p /tests",
        "chmod +x /tests/run",
        "cat < /tests/a > /tmp/x 2> /dev/null",
        "cd /tests; cd /tmp; echo x > a",
        "(cd /tests && cat a) > /tmp/out",
        "rm -rf /testset /tmp/tests",
        'TEST_DIR=$(mktemp -d) && cp -a /tests/. "$TEST_DIR" && sed -i s/a/b/ "$TEST_DIR/a"',
        'sed -i s/a/b/ "$ELSEWHERE/a.py"',
    ],
)
def test_reading_the_tests_and_writing_elsewhere_are_not(line: str) -> None:
    assert lines(f"true\n{line}\n", SETTINGS) == []


def test_a_variable_of_the_tests_may_name_their_directory() -> None:
    script = 'find "$TEST_DIR" -name "*.java" -exec sed -i s/@Disabled// {} + || true\ncd "$TEST_DIR"; echo x > a\n'
    assert lines(script, SETTINGS) == [1, 2]
    assert lines(script) == []
