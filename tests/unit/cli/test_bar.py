"""Bars of long work: on standard error of a terminal, and never in a command's output."""

import os
import pty
import subprocess
import sys
import termios

import pytest

from orchestrator.cli.bar import busy, progress, publishing

SCRIPT = """
from orchestrator.cli.bar import busy, progress, publishing
with progress("check [x] tasks") as tick:
    for n in range(1, 5):
        tick(n, 4)
with publishing("publish [x] tasks") as bars:
    bars.sent(0, 0)
    bars.sent(1_500_000, 3_000_000)
    bars.tasks(7, 9)
    print("printed")
with busy("reconcile"):
    print("owed")
"""


def test_where_no_terminal_looks_nothing_is_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("publish") as tick:
        tick(1, 2)
    with publishing("publish") as bars:
        bars.sent(1, 2)
        bars.tasks(1, 2)
    with busy("reconcile"):
        pass
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_it_is_drawn_on_standard_error_and_what_is_printed_stays_on_standard_output() -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    try:
        environment = {**os.environ, "TERM": "xterm-256color"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=environment,
            timeout=60,
            check=True,
        )
        drawn = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b"printed\nowed\n"
    assert "check [x] tasks" in drawn and "4/4" in drawn and "reconcile" in drawn
    assert "1.5/3.0 MB" in drawn and "publish [x] tasks" in drawn and "7/9" in drawn
