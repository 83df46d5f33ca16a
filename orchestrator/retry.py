"""Retrying dead letters over the bus: a message is republished unchanged, a group's task as a new submission."""

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, Outgoing
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import TaskSubmitted, decode
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.pool.dead_letters import DeadGroup, DeadMessage
from orchestrator.publish import publish_tasks


async def publish_again(bus: Bus, message: DeadMessage) -> None:
    """Publish the message; the caller drops the dead letter afterwards. In between it exists twice, and ingest treats known content as a no-op.
    ValueError, one sentence, for a message that is stored only in part: its original is lost."""
    if message.in_part:
        raise ValueError(
            f"m{message.number} cannot be published again, it is kept in part only: {message.reason}; "
            "let its sender send it again, or drop it"
        )
    # A separate id: the stream remembers the first one for a while and would drop the copy.
    name = f"{message.msg_id or 'dead'}:again:{message.number}"
    await bus.publish(
        Outgoing(subject=message.subject, msg_id=name, schema=message.schema or "", body=message.body)
    )


def submission_of(message: DeadMessage) -> tuple[str, str] | None:
    """(run, submission) of a dead letter whose task was rejected. The rejection holds until it is deleted. None for any other letter."""
    try:
        run, _ = subjects.parse_tasks(message.subject)
        event = decode(message.body, message.schema or "", TaskSubmitted)
        return run, subjects.check_submission(event.submission or sha256(message.body).hex())
    except (MessageError, ValueError):
        return None


async def submit_again(bus: Bus, run: str, group: DeadGroup, submission: str, timeout_s: float) -> None:
    """Submit a dead group's task under a new submission id, and wait for the answer. ValueError, one sentence, unless it is accepted."""
    event = TaskSubmitted(
        task=group.body,
        submission=submission,
        purpose=group.purpose,
        scaffold=group.scaffold,
        group_size=group.size,
        label=group.label,
        version=group.version,
        sampling=group.sampling,
    )
    answers = await publish_tasks(bus, run, [(group.domain, event)], timeout_s)
    answer = answers.get(submission)
    if answer is None:
        raise ValueError(f"{submission} was unanswered: no orchestrator answered within {timeout_s:g} s")
    status, reason = answer
    if status is not SubmissionStatus.ACCEPTED:
        raise ValueError(f"{submission} was {status}: {reason}")
