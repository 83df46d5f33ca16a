"""Attributes of an attempt under our own names, shared by all formats: ATIF in `extra.penstock`, Parquet in columns."""

from typing import Any

from orchestrator.queries.attempts import RecordedAttempt


def about(attempt: RecordedAttempt) -> dict[str, Any]:
    """Identity, task and outcome of the attempt, without values that formats write in their own way (times, rewards, versions)."""
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
