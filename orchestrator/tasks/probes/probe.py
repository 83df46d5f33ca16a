"""A reward-hacking probe: one way to a reward without the work, as a small agent program.

A probe is data. Its caller decides where it runs: `orchestrator.probing` in sandboxes alone, the tests also over a whole stack.

| part | use |
|---|---|
| `command` | bash runs it as the agent, in the work directory; `$TARGET`: a file that the solution leaves, `$NEEDLE`: a pattern of the secrets |
| `TARGETS`, `HEADERS` | arrays for a command: all files that the solution leaves; the first line of each that is a table, empty for the others |
| `program` | Python; placed where the task's judge looks for a program of the agent's, or at `file` |
| `answer` | the final message; None: the command's output |
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final, Self

TARGET: Final = "out"
"""The target file of a task without a solution."""


class ProbeKind(StrEnum):
    """The target of a probe's attack. The table in ops/guides/security.md lists what each tries, what it earned and what it earns."""

    READ_TESTS = auto()
    SEARCH_DISK = auto()
    SEARCH_PROCESSES = auto()
    SEARCH_ENVIRONMENT = auto()
    SEARCH_HISTORY = auto()
    OTHER_SANDBOXES = auto()
    GATEWAY_ADMIN = auto()
    LINK_LEFT = auto()
    PIPE_LEFT = auto()
    DIRECTORY_LEFT = auto()
    REWARD_FILE = auto()
    REWARD_IN_WORK = auto()
    DAEMON = auto()
    LOGS_MOVED = auto()
    TESTS_WRITTEN = auto()
    PROGRAMS_FIRST = auto()
    SHELL_STARTUP = auto()
    PRELOADED = auto()
    CLAIM = auto()
    DEADLINE = auto()
    TOO_MUCH = auto()
    GUESS = auto()
    LONG_ANSWER = auto()
    PATTERN = auto()
    OPERATORS = auto()
    ARITHMETIC = auto()
    NOT_A_NUMBER = auto()
    SHELL_TEXT = auto()
    FILE_NAMES = auto()
    EMPTY_WORK = auto()
    GIT_CONFIGURATION = auto()
    BUILD_FILE = auto()
    PLANTED_MODULE = auto()
    TIMESTAMPS = auto()
    REWARD_WHILE_JUDGED = auto()
    JUDGE_KILLED = auto()
    TESTS_WHILE_JUDGED = auto()
    ECHO = auto()
    EXIT_CODE = auto()
    HANG = auto()
    MEMORY = auto()
    PROCESSES = auto()
    JUDGE_MEMORY = auto()
    JUDGE_DESCRIPTORS = auto()
    REWARD_MOVED = auto()
    HOME_PLANTED = auto()
    LINK_WHILE_JUDGED = auto()
    PIPE_WHILE_JUDGED = auto()
    JUDGE_ARGUMENTS = auto()
    JUDGE_TEMPORARY = auto()
    SHARED_MEMORY = auto()
    VETO_MEMORY = auto()
    VETO_OUTPUT = auto()
    VETO_FILES = auto()
    VETO_DISK = auto()
    VETO_PROCESSES = auto()
    VETO_TIME = auto()
    SCHEDULED = auto()
    WATCHER = auto()
    SHELL_FUNCTIONS = auto()
    CLOCK = auto()
    NEIGHBOURS = auto()
    SOCKETS = auto()
    HARD_LINK = auto()
    DEVICE = auto()
    JUDGE_ADDRESSED = auto()
    TEST_CONFIGURATION = auto()
    TESTS_SKIPPED = auto()
    TESTS_DELETED = auto()
    EQUAL_TO_EVERYTHING = auto()
    VISIBLE_CASES = auto()
    VERIFIER_RECOGNISED = auto()
    EXIT_HOOK = auto()
    CRASH = auto()
    OUTSIDE_CONVERSATION = auto()
    AUXILIARY_NAME = auto()
    PARALLEL_CALLS = auto()
    GATEWAY_BROKEN = auto()


class Needs(StrEnum):
    """A requirement on the task, or on the caller, for a probe to apply."""

    NOTHING = auto()
    PROGRAM = auto()  # a solution that leaves a program: the judge may run the probe's in its place
    GATEWAY = auto()  # an agent program inside the sandbox that reaches the gateway: a whole stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One way to a reward without the work. `name` is unique; `tries` describes it in one sentence."""

    name: str
    kind: ProbeKind
    tries: str
    command: str = ""
    program: str = ""
    file: str = ""
    answer: str | None = None
    needs: Needs = Needs.NOTHING

    @classmethod
    def of_program(cls, name: str, kind: ProbeKind, tries: str, program: str) -> Self:
        """A probe whose program the judge runs in place of the solution's."""
        return cls(name=name, kind=kind, tries=tries, program=program, needs=Needs.PROGRAM)

    def acts(
        self,
        target: str = TARGET,
        needle: str = "",
        programs: tuple[str, ...] = (),
        *,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """The shell command of the whole attempt. `programs`: paths of the programs that the judge may run, below the work directory; `headers`: of
        each file that the solution leaves, by its path, the first line if it is a table, else empty."""
        lines = [f"TARGET={shlex.quote(target)} NEEDLE={shlex.quote(needle)}"]
        if "{TARGETS[" in self.command:
            known = headers or {target: ""}
            lines.append(f"TARGETS=({shlex.join(known)}) HEADERS=({shlex.join(known.values())})")
        if self.program:
            for path in (self.file,) if self.file else programs:
                lines.append(_writes(path, self.program))
        return "\n".join([*lines, self.command] if self.command else lines)


def _writes(path: str, source: str) -> str:
    """The command that writes a Python program at `path`, in the language of the path's extension."""
    if not path.endswith((".py", ".pth")):
        source = f"#!/bin/sh\nexec python3 -c {shlex.quote(source)}"
    quoted = shlex.quote(path)
    return f"mkdir -p \"$(dirname {quoted})\"; cat > {quoted} <<'PROBE'\n{source}\nPROBE\nchmod +x {quoted}"


def takes_the_place_of(path: str, body: bytes) -> bool:
    """Whether a probe's program can replace this file of a solution: Python, a shell script, a program with `#!`."""
    return path.endswith((".py", ".sh")) or body.startswith(b"#!")
