"""Filters of trajectories, as keyword arguments with Python types."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from orchestrator.api.published import Published, accepted_in
from orchestrator.api.scaffolds import ScaffoldLike, reference
from orchestrator.queries.attempt_filters import AttemptFilters


class TrajectoryFilters(TypedDict, total=False):
    """Which trajectories are read; a missing key matches all. All keys together must match."""

    task: str
    """Name of the task."""
    submissions: Published | Iterable[str]
    """Submission ids, or the result of `Run.publish`."""
    rollouts: Iterable[int]
    """Rollout ids."""
    groups: Iterable[int]
    """Group ids."""
    purpose: str
    """train, eval or record."""
    label: str
    """Label of the submission; "" selects submissions without a label."""
    domain: str
    """Domain of the task."""
    scaffold: ScaffoldLike
    """The scaffold that the submission names."""
    state: str
    """State of the group (trained, scored …) or of the rollout (verified, lost)."""
    versions: int | tuple[int | None, int | None]
    """With tokens of this policy version, or of versions from the first to the last, inclusive; None is an open end."""
    since: datetime | timedelta
    """Ended since this time (without a zone: in this machine's), or within this age."""
    every_attempt: bool
    """Also attempts that were given up for another one."""


def attempt_filters(
    *,
    task: str | None = None,
    submissions: Published | Iterable[str] | None = None,
    rollouts: Iterable[int] = (),
    groups: Iterable[int] = (),
    purpose: str | None = None,
    label: str | None = None,
    domain: str | None = None,
    scaffold: ScaffoldLike | None = None,
    state: str | None = None,
    versions: int | tuple[int | None, int | None] | None = None,
    since: datetime | timedelta | None = None,
    every_attempt: bool = False,
) -> AttemptFilters:
    """The same filters for queries. Raises ArgumentError for a value that cannot be used."""
    low, high = versions if isinstance(versions, tuple) else (versions, versions)
    span = f"{'' if low is None else low}..{'' if high is None else high}"
    if isinstance(since, timedelta):
        since = datetime.now(UTC) - since
    return AttemptFilters(
        task=task,
        submissions=() if submissions is None else accepted_in(submissions),
        rollouts=tuple(rollouts),
        groups=tuple(groups),
        purpose=purpose,
        label=label,
        domain=domain,
        scaffold=None if scaffold is None else reference(scaffold),
        state=state,
        versions=None if span == ".." else span,
        since=None if since is None else since.isoformat(),
        every_attempt=every_attempt,
    )
