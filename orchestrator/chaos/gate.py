"""What a chaos run has to have done before "nothing was found" says anything: as many faults as planned, each with a victim and with work before
it, none of them empty, most on work in flight, and a ledger that was compared with something.
"""

from collections.abc import Sequence
from typing import Final

from orchestrator.audit import Report
from orchestrator.audit.sandboxes import REMOVED
from orchestrator.audit.witness import GENERATED, RECEIVED
from orchestrator.chaos.plan import COUNTED, Fault, Kind
from orchestrator.chaos.tally import Outcome, in_flight

STEPS: Final = 20  # between two faults, unless there is a commit
IN_FLIGHT: Final = 0.8  # of all faults, at least


def unmet(planned: Sequence[Fault], done: Sequence[Outcome], report: Report | None) -> list[str]:
    """Sentences, each a violation. `planned` are the faults of the whole run, `done` those of the ledger, also of a run before a resume."""
    problems = []
    indices = {outcome.index for outcome in done}
    if missing := [fault for fault in planned if fault.index not in indices]:
        problems.append(
            f"{len(planned) - len(missing)} of {len(planned)} planned faults were done; the first that was not: "
            f"{missing[0].index} ({missing[0].title})"
        )
    for outcome in done:
        if outcome.problem:
            problems.append(f"fault {outcome.index} ({outcome.title}) hurt nobody: {outcome.problem}")
        elif outcome.kind in COUNTED and not outcome.did:
            problems.append(
                f"fault {outcome.index} ({outcome.title}) did nothing: there were no {COUNTED[Kind(outcome.kind)]}"
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
    """Checks that compared nothing with the ledger, or that were not made. No report at all is a violation of its own."""
    if report is None:
        return []
    examined = {check.name: check.examined for check in report.checks if not check.skipped}
    unlooked = [] if REMOVED in examined else [f"the audit did not make its check {REMOVED!r}"]
    return unlooked + [
        f"the audit compared nothing with the ledger in its check {name!r}"
        for name in (RECEIVED, GENERATED)
        if not examined.get(name)
    ]
