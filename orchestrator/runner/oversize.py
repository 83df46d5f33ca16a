"""A worker's replacement for a result that is too large for the bus: it states that nothing of it can be graded, and why.

The message keeps its id and its lease epoch, but loses its large parts (artifacts, answer, tool calls, log, test results). An agent decides how
much it leaves, so this must not give it another attempt: the result keeps its kind, with nothing to grade.
"""

import msgspec

from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import JournalEntry
from orchestrator.contracts.events import RolloutFinished, VerdictReached, decode, encode
from orchestrator.contracts.limits import LONGEST_REASON
from orchestrator.contracts.no_verdict import NOTE
from orchestrator.contracts.quote import cut_to
from orchestrator.contracts.states import FailureClass
from orchestrator.tasks.verdict import PROCESS_FILE


async def failed_instead(entry: JournalEntry, reason: str) -> Outgoing:
    """A result that is graded 0, or remains an infrastructure failure; for a verdict, the same one without its large parts."""
    message, why = entry.message, cut_to(f"result too large: {reason}", LONGEST_REASON)
    event: RolloutFinished | VerdictReached
    if message.schema == VerdictReached.schema():
        verdict = decode(message.body, message.schema, VerdictReached)
        note = f"{NOTE}left out: the tests and the log: {why}"
        event = msgspec.structs.replace(verdict, tests=[], log=note)
        if 2 * len(encode(event)) > len(message.body):
            event = msgspec.structs.replace(event, process=None, log=f"{note}; and {PROCESS_FILE}")
    else:
        original = decode(message.body, message.schema, RolloutFinished)
        infra = original.failure_class is FailureClass.INFRA_FAILURE
        completed = original.failure_class is FailureClass.COMPLETED
        event = msgspec.structs.replace(
            original,
            failure_class=FailureClass.POLICY_FAILURE if completed else original.failure_class,
            reason=original.reason if infra else why,
            answer=None,
            artifacts=[],
            listing=[],
            tool_calls=[],
            log="",
            ungradable=None if infra else why,
        )
    return Outgoing(subject=message.subject, msg_id=message.msg_id, schema=message.schema, body=encode(event))
