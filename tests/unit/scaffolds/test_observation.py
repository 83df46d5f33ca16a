"""An agent's view of a command."""

import pytest
from scaffolds.observation import CHARACTERS, observe, shortened

NOT_FOUND = b"bash: line 1: oak: command not found\n"


@pytest.mark.parametrize(
    ("stdout", "stderr", "exit_code", "full", "brief"),
    [
        (b"7\n", b"", 0, "7", "7"),
        (b"a\nb\nc\nd\n", b"", 0, "a\nb\nc\nd", "a\nb\nc"),
        (b"x" * 200, b"", 0, "x" * 200, "x" * 80),
        (b"", b"", 0, "ok", "ok"),
        (b"", b"", 2, "exit 2", "exit 2"),
        (b" \n\n", b"", 0, "ok", "ok"),
        (b" \n\n", b"", 1, "exit 1", "exit 1"),
        (b"", NOT_FOUND, 127, "oak: command not found\nexit 127", "oak: command not found"),
        (b"out", b"err\n", 1, "out\nerr\nexit 1", "out\nerr"),
        (b"a\n\nb\n", b"", 0, "a\n\nb", "a\n\nb"),
        (b"\n\n\nb\n", b"", 3, "\n\n\nb\nexit 3", "\n\n"),
        (b"\xff\n", b"", 0, "\ufffd", "\ufffd"),
    ],
)
def test_an_observation_is_the_output_with_a_bad_exit_code_or_a_few_short_lines_and_never_nothing(
    stdout: bytes, stderr: bytes, exit_code: int, full: str, brief: str
) -> None:
    assert observe(stdout, stderr, exit_code) == full
    assert observe(stdout, stderr, exit_code, lines=3) == brief


@pytest.mark.parametrize(
    ("text", "characters", "seen"),
    [
        ("0123456789", 10, "0123456789"),
        ("0123456789x", 10, "01234\n[1 characters left out]\n6789x"),
        ("0123456789", 3, "01\n[7 characters left out]\n9"),
        ("0123456789", 1, "0\n[9 characters left out]\n"),
        ("x" * 12_000, 2_000, "x" * 1_000 + "\n[10,000 characters left out]\n" + "x" * 1_000),
    ],
)
def test_of_a_long_output_the_head_and_the_tail_remain_with_the_number_of_characters_between(
    text: str, characters: int, seen: str
) -> None:
    assert shortened(text, characters) == seen
    assert observe(text.encode(), b"", 1, characters=characters) == "\n".join([seen, "exit 1"])


def test_a_real_log_is_seen_to_its_last_line() -> None:
    log = "\n".join(f"test {number} passed" for number in range(2_000)) + "\nFAILED test_last\n"
    seen = observe(log.encode(), b"", 1)
    assert seen.startswith("test 0 passed\n") and seen.endswith("\nFAILED test_last\nexit 1")
    assert CHARACTERS < len(seen) < CHARACTERS + 60
