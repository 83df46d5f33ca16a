"""An agent's view of a command."""

from dataclasses import replace

import pytest
from scaffolds.base import AgentLimits
from scaffolds.examples import agent
from scaffolds.observation import CHARACTERS, observe, shortened
from scaffolds.seen import seen

from sandboxes.base import ExecResult, KilledBy

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
    ("killed_by", "stdout", "full", "brief"),
    [
        (KilledBy.TIMEOUT, b"partial\n", "partial\nkilled after 1.5 s", "partial"),
        (KilledBy.TIMEOUT, b"", "killed after 1.5 s", "exit 137"),
        (KilledBy.MEMORY, b"a", "a\nkilled at the limit of memory", "a"),
        (KilledBy.OUTPUT, b"y", "y\n[more was printed, and dropped]\nkilled at the limit of output", "y"),
        (KilledBy.CALLER, b"", "killed", "exit 137"),
    ],
)
def test_a_killed_command_says_so_and_why(killed_by: KilledBy, stdout: bytes, full: str, brief: str) -> None:
    limits = AgentLimits(turns=1, context=1, tool_timeout_s=1.5, timeout_s=9.0)
    result = ExecResult(
        exit_code=137,
        stdout=stdout,
        stderr=b"",
        truncated=killed_by is KilledBy.OUTPUT,
        killed_by=killed_by,
        wall_s=1.5,
        cpu_s=0.0,
    )
    assert seen(result, limits) == full
    assert seen(result, replace(limits, observation_lines=3)) == brief


def test_the_example_program_shows_what_the_scaffolds_show_and_keeps_background_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "COMMAND_S", 1)
    pid = agent.shell("sleep 60 & echo $!")
    shown = {
        "echo a; false": "a\nexit 1",
        "true": "exit 0",
        "echo b": "b",
        "echo c; sleep 60": "c\nkilled after 1 s",
        f"kill {pid} && echo it lived": "it lived",
    }
    assert {command: agent.shell(command) for command in shown} == shown
    long = agent.shell("seq 5000; exit 3")
    assert long.startswith("1\n2\n") and long.endswith("\n5000\nexit 3") and " characters left out]\n" in long


@pytest.mark.parametrize(
    ("text", "characters", "shown"),
    [
        ("0123456789", 10, "0123456789"),
        ("0123456789x", 10, "01234\n[1 characters left out]\n6789x"),
        ("0123456789", 3, "01\n[7 characters left out]\n9"),
        ("0123456789", 1, "0\n[9 characters left out]\n"),
        ("x" * 12_000, 2_000, "x" * 1_000 + "\n[10,000 characters left out]\n" + "x" * 1_000),
    ],
)
def test_of_a_long_output_the_head_and_the_tail_remain_with_the_number_of_characters_between(
    text: str, characters: int, shown: str
) -> None:
    assert shortened(text, characters) == shown
    assert observe(text.encode(), b"", 1, characters=characters) == "\n".join([shown, "exit 1"])


def test_a_real_log_is_seen_to_its_last_line() -> None:
    log = "\n".join(f"test {number} passed" for number in range(2_000)) + "\nFAILED test_last\n"
    shown = observe(log.encode(), b"", 1)
    assert shown.startswith("test 0 passed\n") and shown.endswith("\nFAILED test_last\nexit 1")
    assert CHARACTERS < len(shown) < CHARACTERS + 60
