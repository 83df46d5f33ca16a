"""What every format that has our own names says of an attempt by them: ATIF in `extra.penstock`, Parquet in columns."""

from typing import Any

from orchestrator.export.records import Attempt


def about(attempt: Attempt) -> dict[str, Any]:
    """Whose it is, what it was for, how it ended; nothing that a format writes in a way of its own (times, rewards, versions)."""
    return {
        "run": attempt.run,
        "rollout": attempt.rollout_id,
        "attempt": attempt.attempt,
        "counts": attempt.counts,
        "group": attempt.group_id,
        "member": attempt.member,
        "submission": attempt.submission,
        "task": attempt.task,
        "domain": attempt.domain,
        "purpose": attempt.purpose,
        "label": attempt.label,
        "queue_position": attempt.seq,
        "pinned_version": attempt.pinned_version,
        "group_state": attempt.group_state,
        "group_reason": attempt.group_reason,
        "failure_class": attempt.failure_class,
        "reason": attempt.reason,
        "answer": attempt.answer,
        "agent_s": attempt.agent_s,
        "queued_s": attempt.queued_s,
    }
