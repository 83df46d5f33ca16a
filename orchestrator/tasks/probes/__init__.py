"""Reward-hacking probes: small agent programs, each one way to a reward without the work.

`PROBES` score 0 on every task whose judge is sound; `orchestrator.probing` tries them on any task, `tests/integration/tasks/test_probes.py` on the
built-in suite, `tests/integration/runner/test_probes.py` over a whole stack.
"""

from typing import Final

from orchestrator.tasks.probes import agent, around_the_judge, gateway, judged, left_behind, runner_of_tests
from orchestrator.tasks.probes.probe import Needs, Probe, ProbeKind, takes_the_place_of

PROBES: Final[tuple[Probe, ...]] = (
    *agent.LOOKS,
    *agent.LEFT,
    *agent.TEXTS,
    *agent.EMPTY,
    *agent.FILES,
    *judged.PROGRAMS,
    *judged.PLANTS,
    *judged.HOMES,
    *around_the_judge.AROUND,
    *left_behind.LEFT_BEHIND,
    *runner_of_tests.RUNNER,
    *runner_of_tests.DISGUISED,
    *gateway.GATEWAY,
)


def probe(name: str) -> Probe:
    """The probe of that name. KeyError if there is none."""
    return {known.name: known for known in PROBES}[name]


__all__ = [
    "PROBES",
    "Needs",
    "Probe",
    "ProbeKind",
    "agent",
    "around_the_judge",
    "gateway",
    "judged",
    "left_behind",
    "probe",
    "runner_of_tests",
    "takes_the_place_of",
]
