"""A finding of a control: a named fault of a task, with the place and the remedy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Control(StrEnum):
    """In the order in which they run."""

    FORM = "form"
    BUILD = "build"
    ORACLE = "oracle"
    NOTHING = "nothing"
    FLAKY = "flaky"
    LEAK = "leak"
    BUDGET = "budget"
    INSTRUCTION = "instruction"
    TAMPER = "tamper"


class TaskFault(StrEnum):
    """A fault of a task, by its name. Names never change their meaning."""

    NOT_WELL_FORMED = "not-well-formed"
    DOES_NOT_BUILD = "does-not-build"
    NO_SOLUTION = "no-solution"
    ORACLE_FAILS = "oracle-fails"
    ORACLE_HAS_NO_VERDICT = "oracle-has-no-verdict"
    NOTHING_PAYS = "nothing-pays"
    NOTHING_HAS_NO_VERDICT = "nothing-has-no-verdict"
    RANDOM = "random"
    DRAW_DEPENDENT = "draw-dependent"
    ORDER_DEPENDENT = "order-dependent"
    CLOCK_DEPENDENT = "clock-dependent"
    LEAK_IN_FILE = "leak-in-file"
    LEAK_IN_ENV = "leak-in-env"
    LEAK_ENCODED = "leak-encoded"
    LEAK_IN_CACHE = "leak-in-cache"
    LEAK_IN_HISTORY = "leak-in-history"
    LEAK_IN_NAME = "leak-in-name"
    NOT_SEARCHED = "not-searched"
    SLOW_ORACLE = "slow-oracle"
    SLOW_TESTS = "slow-tests"
    TIGHT_LIMITS = "tight-limits"
    UNNAMED = "unnamed"
    PROBE_PAYS = "probe-pays"
    PROBE_LEAKS = "probe-leaks"
    PROBE_HAS_NO_VERDICT = "probe-has-no-verdict"


REMEDIES: Final[dict[TaskFault, str]] = {
    TaskFault.NOT_WELL_FORMED: "run `penstock tasks check` and correct what it names",
    TaskFault.DOES_NOT_BUILD: "correct environment/ until a sandbox opens, and tests/Dockerfile until that of the tests does",
    TaskFault.NO_SOLUTION: "add solution/solve.sh, which earns the whole reward",
    TaskFault.ORACLE_FAILS: "correct solution/solve.sh or the tests; a lower maximum is declared as max_reward in [metadata]",
    TaskFault.ORACLE_HAS_NO_VERDICT: "make tests/test.sh write 0 first, and end without a signal",
    TaskFault.NOTHING_PAYS: "make the tests fail on the untouched environment",
    TaskFault.NOTHING_HAS_NO_VERDICT: "make tests/test.sh write 0 before it looks at the work",
    TaskFault.RANDOM: "take random draws from $PENSTOCK_SEED, wait for conditions and not for times",
    TaskFault.DRAW_DEPENDENT: "make the tests accept every correct work, whatever $PENSTOCK_SEED and PYTHONHASHSEED are",
    TaskFault.ORDER_DEPENDENT: "give each test its own files and state",
    TaskFault.CLOCK_DEPENDENT: "compare no dates with today's; set TZ and the date that the tests need themselves",
    TaskFault.LEAK_IN_FILE: "remove the answer from environment/",
    TaskFault.LEAK_IN_ENV: "remove it from ENV and [environment].env; variables of the tests belong into [verifier].env",
    TaskFault.LEAK_ENCODED: "remove the encoded answer from environment/: an agent decodes it in one command",
    TaskFault.LEAK_IN_CACHE: "remove caches (__pycache__, package caches) that were made from the solution or the tests",
    TaskFault.LEAK_IN_HISTORY: "remove the repository's objects: begin a history without the solution",
    TaskFault.LEAK_IN_NAME: "rename the file, link or directory, or change the link: its name or target gives the answer",
    TaskFault.NOT_SEARCHED: "add GNU tar, or wc and head, to the image: without them it cannot be searched for leaks",
    TaskFault.SLOW_ORACLE: "raise [agent].timeout_sec",
    TaskFault.SLOW_TESTS: "raise [verifier].timeout_sec, or make the tests faster",
    TaskFault.TIGHT_LIMITS: "raise [environment].memory_mb or storage_mb (or the run's sandbox limits), or let the work need less",
    TaskFault.UNNAMED: "name it in instruction.md if the agent must use exactly this",
    TaskFault.PROBE_PAYS: "let the tests decide by what they compute themselves",
    TaskFault.PROBE_LEAKS: "keep the tests' files out of the work directory",
    TaskFault.PROBE_HAS_NO_VERDICT: "make tests/test.sh write 0 first, and run the agent's programs through $PENSTOCK_UNTRUSTED",
}

REPORTED: Final = frozenset({TaskFault.UNNAMED})
"""Faults that take no level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault. `says`: one sentence about this task; `where`: a file, a variable, a probe, may be empty; `remedy` replaces the fault's own."""

    control: Control
    fault: TaskFault
    says: str
    where: str = ""
    remedy: str = ""

    @property
    def counts(self) -> bool:
        """Whether it costs the task its level."""
        return self.fault not in REPORTED

    @property
    def what_to_do(self) -> str:
        return self.remedy or REMEDIES[self.fault]
