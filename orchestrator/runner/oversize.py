"""A worker's replacement for a result that is too large for the bus, or that its reader would refuse: it states that nothing of it can be graded,
and why.

The message keeps its id and its lease epoch, but loses its large parts (artifacts, answer, tool calls, log, test results). An agent decides how
much it leaves, so this must not give it another attempt: the result keeps its kind, with nothing to grade.
"""

from collections.abc import Sequence

import msgspec

from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import JournalEntry
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import ArtifactFile, RolloutFinished, VerdictReached, decode, encode
from orchestrator.contracts.limits import MAX_REASON
from orchestrator.contracts.no_verdict import NOTE
from orchestrator.contracts.quote import cut_to
from orchestrator.contracts.states import FailureClass
from orchestrator.runtime.log import get
from orchestrator.tasks.validate_results import check_result
from orchestrator.tasks.verdict import PROCESS_FILE
from sandboxes.base import ArtifactLimits

log = get(__name__)


async def failed_instead(entry: JournalEntry, reason: str) -> Outgoing:
    """A result that is graded 0, or remains an infrastructure failure; for a verdict, the same one without its large parts."""
    message, why = entry.message, cut_to(f"result too large: {reason}", MAX_REASON)
    event: RolloutFinished | VerdictReached
    if message.schema == VerdictReached.schema():
        verdict = decode(message.body, message.schema, VerdictReached)
        note = f"{NOTE}left out: the tests and the log: {why}"
        event = msgspec.structs.replace(verdict, tests=[], log=note)
        if 2 * len(encode(event)) > len(message.body):
            event = msgspec.structs.replace(event, process=None, log=f"{note}; and {PROCESS_FILE}")
    else:
        event = nothing_graded(decode(message.body, message.schema, RolloutFinished), why)
    return Outgoing(subject=message.subject, msg_id=message.msg_id, schema=message.schema, body=encode(event))


def readable(
    event: RolloutFinished, artifacts: Sequence[ArtifactFile], limits: ArtifactLimits
) -> RolloutFinished:
    """`event`, or its replacement if the orchestrator would refuse it. `artifacts`: its list, also where blobs hold that. A result that is refused
    would give the agent another attempt."""
    try:
        sent = decode(encode(event), RolloutFinished.schema(), RolloutFinished)
        check_result(
            msgspec.structs.replace(sent, artifacts=list(artifacts) if sent.listing else sent.artifacts),
            limits,
        )
    except MessageError as error:
        log.error("result.unreadable", rollout=event.rollout, attempt=event.attempt, why=str(error))
        return nothing_graded(event, cut_to(f"nothing of it can be read: {error}", MAX_REASON))
    return event


def nothing_graded(event: RolloutFinished, why: str) -> RolloutFinished:
    """`event` without what the agent left. One that would have been graded gets 0."""
    infra = event.failure_class is FailureClass.INFRA_FAILURE
    completed = event.failure_class is FailureClass.COMPLETED
    return msgspec.structs.replace(
        event,
        failure_class=FailureClass.POLICY_FAILURE if completed else event.failure_class,
        reason=event.reason if infra else why,
        answer=None,
        artifacts=[],
        listing=[],
        tool_calls=[],
        log="",
        ungradable=None if infra else why,
    )
