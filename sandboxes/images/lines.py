"""The lines of a Dockerfile that make one instruction, by Docker's rules: comments and blank lines neither begin, continue nor end one."""

from __future__ import annotations

from collections.abc import Sequence


def is_passed_over(line: str) -> bool:
    """Whether a line is a comment, or blank."""
    return not (bare := line.strip()) or bare.startswith("#")


def last_line(lines: Sequence[str], at: int) -> int:
    """The last line of the instruction that begins at `at`; `at` itself for a line that is passed over."""
    if is_passed_over(lines[at]):
        return at
    last = at
    while last + 1 < len(lines) and (is_passed_over(lines[last]) or _goes_on(lines[last])):
        last += 1
    return last


def _goes_on(line: str) -> bool:
    return line.rstrip().endswith("\\")


def parts(lines: Sequence[str], at: int, last: int) -> list[str]:
    """Those lines of an instruction that are not passed over."""
    return [line for line in lines[at : last + 1] if not is_passed_over(line)]
