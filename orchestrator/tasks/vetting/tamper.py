"""The control `tamper`: every reward-hacking probe earns 0. A probe that earns more shows a weakness of the task's tests, with its remedy."""

from collections.abc import Sequence
from typing import Final

from orchestrator.tasks.probes import Needs, Probe, ProbeKind
from orchestrator.tasks.traps import ADVICE, Rule
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault

_WRAPPER: Final = ADVICE[Rule.AGENT_PROGRAM].safe
_REMEDIES: Final[dict[ProbeKind, str]] = {
    ProbeKind.LONG_ANSWER: ADVICE[Rule.SOMEWHERE].safe,
    ProbeKind.PATTERN: "quote the agent's text where it is compared, and never use it as a pattern",
    ProbeKind.OPERATORS: ADVICE[Rule.OPERATORS].safe,
    ProbeKind.ARITHMETIC: ADVICE[Rule.ARITHMETIC].safe,
    ProbeKind.NOT_A_NUMBER: ADVICE[Rule.NOT_A_NUMBER].safe,
    ProbeKind.SHELL_TEXT: "do not evaluate or source what the agent wrote: IFS= read -r value < out",
    ProbeKind.FILE_NAMES: ADVICE[Rule.NAMES].safe,
    ProbeKind.GIT_CONFIGURATION: ADVICE[Rule.GIT].safe,
    ProbeKind.BUILD_FILE: ADVICE[Rule.BUILD_TOOL].safe,
    ProbeKind.PLANTED_MODULE: "run the tests' own Python with -I, and pytest with --noconftest and its own configuration file",
    ProbeKind.TEST_CONFIGURATION: "run pytest from /tests with -c /tests/pytest.ini --noconftest, or delete such files before",
    ProbeKind.TESTS_SKIPPED: "run pytest from /tests with -c /tests/pytest.ini --noconftest, and count the tests that passed",
    ProbeKind.TESTS_DELETED: "run the tests and their programs from /tests, and count the tests that passed",
    ProbeKind.EMPTY_WORK: ADVICE[Rule.EMPTY].safe,
    ProbeKind.TIMESTAMPS: ADVICE[Rule.TIMES].safe,
    ProbeKind.LINK_LEFT: ADVICE[Rule.LINKS].safe,
    ProbeKind.CLAIM: "decide by the work, not by what the agent says of it",
    ProbeKind.JUDGE_ADDRESSED: "decide by the work, not by what the agent says of it",
    ProbeKind.REWARD_IN_WORK: "write the reward from values that the tests computed, not from a file of the work directory",
    ProbeKind.EQUAL_TO_EVERYTHING: ADVICE[Rule.IMPORTED].safe,
    ProbeKind.GUESS: "make the tests fail without the work",
    ProbeKind.VISIBLE_CASES: "check with inputs that the agent cannot see, drawn from $PENSTOCK_SEED",
    ProbeKind.EXIT_CODE: "compare what the program computes, not only its exit status",
    ProbeKind.ECHO: "check with an input whose right result is not the input",
}


def remedy_of(probe: Probe) -> str:
    """The reason why a task's tests do not pay for this probe."""
    if probe.kind in _REMEDIES:
        return _REMEDIES[probe.kind]
    return _WRAPPER if probe.needs is Needs.PROGRAM or probe.program else ""


def finding_of(probe: Probe, reward: float | None, reason: str | None, leaked: bool) -> Finding | None:
    """The finding of one probe that was tried; None: it earned nothing. `leaked`: a secret of the tests came out with its work."""
    if reward is None:
        says = f"the probe {probe.name!r} gets no verdict: {reason}"
        return _finding(TaskFault.PROBE_HAS_NO_VERDICT, probe, says)
    if reward > 0.0:
        return _finding(
            TaskFault.PROBE_PAYS, probe, f"the probe {probe.name!r} earns {reward:g}. {probe.tries}"
        )
    if leaked:
        says = f"the probe {probe.name!r} reads a secret of the tests. {probe.tries}"
        return _finding(TaskFault.PROBE_LEAKS, probe, says)
    return None


def _finding(fault: TaskFault, probe: Probe, says: str) -> Finding:
    remedy = "" if fault is TaskFault.PROBE_HAS_NO_VERDICT else remedy_of(probe)
    return Finding(control=Control.TAMPER, fault=fault, says=says, where=probe.name, remedy=remedy)


def kinds(probes: Sequence[Probe]) -> int:
    """How many kinds of probes these are."""
    return len({probe.kind for probe in probes})
