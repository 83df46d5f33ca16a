"""Filters of exports: which attempts an export takes. One set for every format, as command-line values and as SQL."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, select

from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.numbers import whole
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import ROLLOUT_TERMINAL, GroupState, Purpose, RolloutState
from orchestrator.pool.columns import among
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import attempts, groups, rollouts, steps, tasks

_AGO = re.compile(r"([0-9]+)\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_VERSIONS = re.compile(r"([0-9]*)\.\.([0-9]*)|([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFilters:
    """The filters of one export; None means any, an empty tuple none. `since` is a time ("2026-01-31T12:00+00:00", "2026-01-31") or an age ("90m",
    "2d").

    `versions` is "7", "3..9", "3.." or "..9": attempts with a token of such a policy version. `state` is of the group or of the rollout.
    `label` "" selects groups without a label.
    """

    rollouts: tuple[int, ...] | None = None
    groups: tuple[int, ...] | None = None
    submissions: tuple[str, ...] | None = None
    task: str | None = None  # the task's name
    purpose: str | None = None
    label: str | None = None
    domain: str | None = None
    scaffold: str | None = None
    state: str | None = None
    versions: str | None = None
    since: str | None = None
    every_attempt: bool = False  # else only the attempt of each rollout that counts

    def __post_init__(self) -> None:
        if self.purpose is not None and self.purpose not in [*Purpose]:
            raise ArgumentError("purpose", f"{quoted(self.purpose)} is unknown; known: {', '.join(Purpose)}")
        if self.state is not None and self.state not in [*GroupState, *RolloutState]:
            known = ", ".join([*GroupState, *RolloutState])
            raise ArgumentError(
                "state", f"{quoted(self.state)} is not a state of a group or a rollout: {known}"
            )
        for name, text in (
            ("label", self.label),
            ("domain", self.domain),
            ("scaffold", self.scaffold),
            ("task", self.task),
        ):
            if text and clean(text) != text:
                raise ArgumentError(name, f"{quoted(text)} holds characters that PostgreSQL cannot store")
        read_versions(self.versions)
        read_since(self.since, datetime.now(UTC))

    def plain(self) -> dict[str, Any]:
        """The filters that are set: for a manifest and for people."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if value not in (None, False)
        }


@dataclass(frozen=True, slots=True)
class Bound:
    """Bounds of an export from a live run: the state as of `at`, by the database's clock, and attempts that ended at `since` or later."""

    at: datetime
    since: datetime | None = None


def read_versions(given: str | None) -> tuple[int | None, int | None]:
    """Both ends, inclusive; None for an open end.

    >>> read_versions("3..9"), read_versions("7"), read_versions("..2"), read_versions(None)
    ((3, 9), (7, 7), (None, 2), (None, None))
    """
    if given is None:
        return None, None
    found = _VERSIONS.fullmatch(given.strip())
    if found is None or given.strip() == "..":
        raise ArgumentError(
            "versions", f"{quoted(given)} cannot be read: write 7, 3..9, 3.. or ..9 (policy versions)"
        )
    try:
        low, high, single = (whole(text) if text else None for text in found.groups())
    except ValueError as error:
        raise ArgumentError("versions", str(error)) from None
    if single is not None:
        return single, single
    if low is not None and high is not None and low > high:
        raise ArgumentError("versions", f"{quoted(given)} ends before it begins: write {high}..{low}")
    return low, high


def read_since(given: str | None, now: datetime) -> datetime | None:
    """The time that `given` names. An age counts back from `now`; a time without a zone is UTC, as in `penstock logs`."""
    if given is None:
        return None
    try:
        if found := _AGO.fullmatch(given.strip()):
            return now - timedelta(**{_UNITS[found[2]]: whole(found[1])})
        moment = datetime.fromisoformat(given.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ArgumentError(
            "since",
            f"{quoted(given)} cannot be read: write a time (2026-01-31T12:00) or an age (90m, 12h, 2d)",
        ) from None


def has(column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
    """Rows with this value; "": rows without one."""
    return column.is_(None) if value == "" else column == value


def conditions(run_id: int, wanted: AttemptFilters, bound: Bound) -> ColumnElement[bool]:
    """For `attempts` joined with their rollouts and groups. Matches finished rollouts only: data that may still change is not exported."""
    found: list[ColumnElement[bool]] = [
        attempts.c.run_id == run_id,
        attempts.c.ended <= bound.at,
        rollouts.c.state.in_([*ROLLOUT_TERMINAL]),
        rollouts.c.changed <= bound.at,
    ]
    if not wanted.every_attempt:
        found.append(attempts.c.attempt == rollouts.c.attempt)
    if wanted.rollouts is not None:
        found.append(among(attempts.c.rollout_id, wanted.rollouts))
    if wanted.groups is not None:
        found.append(among(rollouts.c.group_id, wanted.groups))
    if wanted.submissions is not None:
        found.append(among(groups.c.submission, wanted.submissions))
    if wanted.task is not None:
        named = select(tasks.c.task_id).where(tasks.c.run_id == run_id, tasks.c.name == wanted.task)
        found.append(groups.c.task_id.in_(named))
    for column in ("purpose", "label", "domain", "scaffold"):
        if (value := getattr(wanted, column)) is not None:
            found.append(has(groups.c[column], value))
    if wanted.state is not None:
        table = groups if wanted.state in [*GroupState] else rollouts
        found.append(table.c.state == wanted.state)
    if bound.since is not None:
        found.append(attempts.c.ended >= bound.since)
    low, high = read_versions(wanted.versions)
    if low is not None or high is not None:
        step_conditions = [
            steps.c.run_id == run_id,
            steps.c.rollout_id == attempts.c.rollout_id,
            steps.c.attempt == attempts.c.attempt,
        ]
        if low is not None:
            step_conditions.append(steps.c.v_hi >= low)
        if high is not None:
            step_conditions.append(steps.c.v_lo <= high)
        found.append(exists().where(*step_conditions))
    return and_(*found)
