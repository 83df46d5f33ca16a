"""What a worker says instead of a result that the bus can never take: that the attempt failed, and why.

The message keeps its id and its lease epoch; what made it large (artifacts, answer, log, test results) is left out.
"""

import msgspec

from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import Entry
from orchestrator.contracts.events import RolloutFinished, VerdictReached, decode, encode
from orchestrator.contracts.states import FailureClass

REASON_CHARACTERS = 500


async def failed_instead(entry: Entry, reason: str) -> Outgoing:
    """An infrastructure failure for a result, a verifier failure for a verdict: neither is ever rewarded."""
    message, why = entry.message, f"result too large: {reason}"[:REASON_CHARACTERS]
    event: RolloutFinished | VerdictReached
    if message.schema == VerdictReached.schema():
        event = msgspec.structs.replace(
            decode(message.body, message.schema, VerdictReached),
            failure_class=FailureClass.VERIFIER_FAILURE,
            reward=None,
            reason=why,
            tests=[],
            log="",
        )
    else:
        event = msgspec.structs.replace(
            decode(message.body, message.schema, RolloutFinished),
            failure_class=FailureClass.INFRA_FAILURE,
            reason=why,
            answer=None,
            artifacts=[],
            tool_calls=[],
            marks=[],
            log="",
            resumable=False,
        )
    return Outgoing(message.subject, message.msg_id, message.schema, encode(event))
