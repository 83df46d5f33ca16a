"""Filters of trajectories, as keyword arguments with Python types."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from orchestrator.api.arguments import each_of, flag, number, words
from orchestrator.api.published import Published, accepted_in
from orchestrator.api.scaffolds import ScaffoldLike, reference
from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.numbers import INT4
from orchestrator.contracts.quote import quoted
from orchestrator.queries.attempt_filters import AttemptFilters


class TrajectoryFilters(TypedDict, total=False):
    """Which trajectories are read; a missing key, or None, matches all, and an empty collection matches none. All keys together must match."""

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
    rollouts: Iterable[int] | None = None,
    groups: Iterable[int] | None = None,
    purpose: str | None = None,
    label: str | None = None,
    domain: str | None = None,
    scaffold: ScaffoldLike | None = None,
    state: str | None = None,
    versions: int | tuple[int | None, int | None] | None = None,
    since: datetime | timedelta | None = None,
    every_attempt: bool | None = None,
) -> AttemptFilters:
    """The same filters for queries. Raises ArgumentError for a value that cannot be used."""
    names = {"task": task, "purpose": purpose, "label": label, "domain": domain, "state": state}
    for name, value in names.items():
        if value is not None:
            words(name, value)
    span = _span(versions)
    return AttemptFilters(
        task=task,
        submissions=None if submissions is None else accepted_in(submissions),
        rollouts=None if rollouts is None else each_of("rollouts", rollouts, number),
        groups=None if groups is None else each_of("groups", groups, number),
        purpose=purpose,
        label=label,
        domain=domain,
        scaffold=None if scaffold is None else reference(scaffold),
        state=state,
        versions=None if span == ".." else span,
        since=None if since is None else _time(since).isoformat(),
        every_attempt=every_attempt is not None and flag("every_attempt", every_attempt),
    )


def _span(versions: object) -> str:
    """The versions as a command takes them; ".." means any."""
    ends = versions if isinstance(versions, tuple) else (versions, versions)
    if len(ends) != 2:
        raise ArgumentError(
            "versions", f"must be a version, or the first and the last, not {quoted(versions)}"
        )
    low, high = ("" if end is None else number("versions", end, most=INT4) for end in ends)
    return f"{low}..{high}"


def _time(since: object) -> datetime:
    if isinstance(since, timedelta) and since >= timedelta(0):
        try:
            return datetime.now(UTC) - since
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    if not isinstance(since, datetime):
        raise ArgumentError("since", f"must be a datetime, or a timedelta from 0, not {quoted(since)}")
    try:
        return since if since.tzinfo else since.astimezone()
    except (ValueError, OverflowError):  # the first or the last hours of all times
        return since.replace(tzinfo=UTC)
