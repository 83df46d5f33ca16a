"""The conditions under which a chaos run that found nothing proves something: all planned faults were done, each with a victim and with work
before it, none of them empty, most on work in flight, and the audit compared the ledger with stored data.
"""

from collections.abc import Sequence
from typing import Final

from ops.lab.chaos.plan import COUNTED, Fault, FaultKind
from ops.lab.chaos.results import FaultOutcome, in_flight
from orchestrator.audit import Report
from orchestrator.audit.i3_external_record import GENERATED, RECEIVED
from orchestrator.audit.i5_sandboxes import REMOVED

STEPS: Final = 20  # between two faults, unless there was a commit
IN_FLIGHT: Final = 0.8  # of all faults, at least


def unmet(planned: Sequence[Fault], done: Sequence[FaultOutcome], report: Report | None) -> list[str]:
    """Sentences, each a violation. `planned`: the faults of the whole run. `done`: those in the ledger, including the ones before a resume."""
    problems = []
    indices = {outcome.index for outcome in done}
    if missing := [fault for fault in planned if fault.index not in indices]:
        problems.append(
            f"{len(planned) - len(missing)} of {len(planned)} planned faults were done; the first that was not: "
            f"{missing[0].index} ({missing[0].title})"
        )
    for outcome in done:
        if outcome.problem:
            problems.append(f"fault {outcome.index} ({outcome.title}) did no harm: {outcome.problem}")
        elif outcome.kind in COUNTED and not outcome.did:
            problems.append(
                f"fault {outcome.index} ({outcome.title}) did nothing: there were no {COUNTED[FaultKind(outcome.kind)]}"
            )
        if outcome.steps < STEPS and not outcome.commits:
            problems.append(
                f"before fault {outcome.index} ({outcome.title}) there were {outcome.steps} steps and no commit: {STEPS} or one belong there"
            )
    if done and (share := in_flight(done)) < IN_FLIGHT:
        problems.append(
            f"{100 * share:.0f} % of the faults hit work in flight: {100 * IN_FLIGHT:.0f} % have to"
        )
    return problems + _unlooked(report)


def _unlooked(report: Report | None) -> list[str]:
    """Checks that were not made or compared nothing with the ledger. Empty without a report: a missing report is a separate violation."""
    if report is None:
        return []
    examined = {check.name: check.examined for check in report.checks if not check.skipped}
    unchecked = [] if REMOVED in examined else [f"the audit did not make its check {REMOVED!r}"]
    return unchecked + [
        f"the audit compared nothing with the ledger in its check {name!r}"
        for name in (RECEIVED, GENERATED)
        if not examined.get(name)
    ]
