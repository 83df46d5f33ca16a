"""Trying dead letters again over the bus: a message once more as it was, a group's task as a new submission."""

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, Outgoing
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import TaskSubmitted, decode
from orchestrator.contracts.ids import sha256
from orchestrator.pool.dead import DeadGroup, DeadMessage
from orchestrator.publish import publish_tasks


async def publish_again(bus: Bus, message: DeadMessage) -> None:
    """Published first, dropped then by whoever asks: in between it is twice there, and ingest takes what it has as a no-op. ValueError, one
    sentence, for what is kept in part: nobody sent that."""
    if message.in_part:
        raise ValueError(
            f"m{message.number} cannot be published again, it is kept in part only: {message.reason}; "
            "let its sender send it again, or drop it"
        )
    # An id of its own: the stream remembers the first one for a while, and would swallow it.
    name = f"{message.msg_id or 'dead'}:again:{message.number}"
    await bus.publish(Outgoing(message.subject, name, message.schema or "", message.body))


def submission_of(message: DeadMessage) -> tuple[str, str] | None:
    """(run, submission) of a dead letter whose task was rejected: that answer stands until it is forgotten. None: it is no such letter."""
    try:
        run, _ = subjects.parse_tasks(message.subject)
        event = decode(message.body, message.schema or "", TaskSubmitted)
        return run, subjects.check_submission(event.submission or sha256(message.body).hex())
    except (MessageError, ValueError):
        return None


async def submit_again(bus: Bus, run: str, group: DeadGroup, submission: str, timeout_s: float) -> None:
    """Submit a dead group's task under a name of its own, and wait for the answer. ValueError, one sentence, unless it is accepted."""
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
    status, reason = answers.get(
        submission, ("unanswered", f"no orchestrator answered within {timeout_s:g} s")
    )
    if status != "accepted":
        raise ValueError(f"{submission} was {status}: {reason}")
