"""The controls `oracle`, `nothing` and `flaky`: rewards of repeated runs in, findings out."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.tasks.verdict import same
from orchestrator.tasks.vetting.conditions import PLAIN, Condition
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from orchestrator.tasks.vetting.remedies import OUTSIDE, remedy_of, writes_outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attempt and its verification. `reward` None: no verdict, and `reason` explains. `agent_s`, `tests_s`: seconds of wall clock."""

    condition: Condition = PLAIN
    reward: float | None
    reason: str = ""
    agent_s: float = 0.0
    tests_s: float = 0.0


def oracle_findings(plain: Sequence[Outcome], maximum: float) -> list[Finding]:
    """The solution earns `maximum` in every plain run. Rewards that differ among the plain runs belong to `flaky`."""
    without = [run for run in plain if run.reward is None]
    if without and len(without) == len(plain):
        says, remedy = f"the solution gets no verdict: {without[0].reason}", remedy_of(without[0].reason)
        return [
            Finding(control=Control.ORACLE, fault=TaskFault.ORACLE_HAS_NO_VERDICT, says=says, remedy=remedy)
        ]
    agree = all(same(run.reward, plain[0].reward) for run in plain)
    if agree and not same(plain[0].reward, maximum):
        reason = plain[0].reason
        because = f": {OUTSIDE}" if writes_outside(reason) else ""
        because += f": {reason.strip()}" if reason else ""
        says, remedy = f"the solution earns {plain[0].reward:.10g} and not {maximum:.10g}{because}", ""
        if writes_outside(reason):
            remedy = remedy_of(reason)
        return [Finding(control=Control.ORACLE, fault=TaskFault.ORACLE_FAILS, says=says, remedy=remedy)]
    return []


def nothing_findings(plain: Sequence[Outcome]) -> list[Finding]:
    """The untouched environment earns 0 in every plain run."""
    paid = [run for run in plain if run.reward is not None and not same(run.reward, 0.0)]
    without = [run for run in plain if run.reward is None]
    if paid and len(paid) == len(plain):
        says = f"the untouched environment earns {paid[0].reward:g}"
        return [Finding(control=Control.NOTHING, fault=TaskFault.NOTHING_PAYS, says=says)]
    if without and len(without) == len(plain):
        says, remedy = (
            f"the untouched environment gets no verdict: {without[0].reason}",
            remedy_of(without[0].reason),
        )
        return [
            Finding(control=Control.NOTHING, fault=TaskFault.NOTHING_HAS_NO_VERDICT, says=says, remedy=remedy)
        ]
    return []


def flaky_findings(what: str, plain: Sequence[Outcome], varied: Sequence[Outcome]) -> list[Finding]:
    """Every run of one control earns the same. `what` names the control's attempt in the sentence.

    If the plain runs differ, chance decides; else each kind of condition whose runs differ is one finding.
    """
    if not plain:
        return []
    rewards = [_word(run.reward) for run in plain]
    if not all(same(run.reward, plain[0].reward) for run in plain):
        says = f"{what} earns {', '.join(rewards)} under the same conditions"
        return [Finding(control=Control.FLAKY, fault=TaskFault.RANDOM, says=says)]
    found: dict[TaskFault, Finding] = {}
    for run in varied:
        if same(run.reward, plain[0].reward) or run.condition.blames in found:
            continue
        because = f" ({run.reason})" if run.reason else ""
        says = f"{what} earns {rewards[0]}, but {_word(run.reward)} with {run.condition.name}{because}"
        found[run.condition.blames] = Finding(
            control=Control.FLAKY, fault=run.condition.blames, says=says, where=run.condition.name
        )
    return list(found.values())


def _word(reward: float | None) -> str:
    return "no verdict" if reward is None else f"{reward:.10g}"
