"""An agent's view of a command."""

import pytest
from scaffolds.observation import observe


@pytest.mark.parametrize(
    ("stdout", "stderr", "exit_code", "seen"),
    [
        (b"7\n", b"", 0, "7"),
        (b"a\nb\nc\nd\n", b"", 0, "a\nb\nc"),
        (b"x" * 200, b"", 0, "x" * 80),
        (b"", b"", 0, "ok"),
        (b"", b"", 2, "exit 2"),
        (b" \n\n", b"", 0, "ok"),
        (b"", b"bash: line 1: oak: command not found\n", 127, "oak: command not found"),
        (b"out", b"err\n", 1, "out\nerr"),
        (b"a\n\nb\n", b"", 0, "a\n\nb"),
        (b"\xff\n", b"", 0, "\ufffd"),
    ],
)
def test_an_observation_is_three_short_lines_and_never_nothing(
    stdout: bytes, stderr: bytes, exit_code: int, seen: str
) -> None:
    assert observe(stdout, stderr, exit_code) == seen
