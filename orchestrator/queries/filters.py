"""Filters of lists of rollouts and groups, as people write them in a URL or a command."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import INT4, INT8, real, whole
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState


class FilterError(PenstockError, ValueError):
    """An unreadable filter: the message names it and its allowed values."""


def _whole(name: str, value: str) -> int:
    try:
        return whole(value, most=INT8 if name.endswith("_id") else INT4)
    except ValueError as error:
        raise FilterError(f"the filter {name} {error}") from None


def _number(name: str, value: str) -> float:
    try:
        return real(value)
    except ValueError as error:
        raise FilterError(f"the filter {name} {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilters:
    """Conditions on rollouts; None: any. `text` occurs in a message or an answer of the attempt that counts, ignoring case.
    `staleness_min`: of trained rollouts, the trainer's version minus the oldest version of a token. `length_*`: tokens of the longest
    step."""

    state: str | None = None
    failure_class: str | None = None
    purpose: str | None = None
    domain: str | None = None
    scaffold: str | None = None
    task: str | None = None
    group_id: int | None = None
    version: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    steps_min: int | None = None
    steps_max: int | None = None
    length_min: int | None = None
    length_max: int | None = None
    staleness_min: int | None = None
    tool: str | None = None
    text: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "RolloutFilters":
        """Filters from a query string; empty values are ignored. Raises FilterError that names the unreadable value."""
        kinds = {f.name: str(f.type) for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in kinds:
                raise FilterError(f"unknown filter {quoted(name)}; known: {', '.join(kinds)}")
            if not value.strip():
                continue
            if "\0" in value:
                raise FilterError(
                    f"the filter {name} must not hold a NUL character (%00 in an address): no text in the data pool has one"
                )
            if kinds[name].startswith("int"):
                values[name] = _whole(name, value)
            else:
                values[name] = _number(name, value) if kinds[name].startswith("float") else value
        for name, known in (("state", RolloutState), ("failure_class", FailureClass), ("purpose", Purpose)):
            if name in values and values[name] not in set(known):
                raise FilterError(
                    f"the filter {name} must be one of {', '.join(known)}, not {quoted(values[name])}"
                )
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilters:
    """Conditions on groups; None: any. `task`: a part of the task's name."""

    state: str | None = None
    purpose: str | None = None
    domain: str | None = None
    scaffold: str | None = None
    reason: str | None = None
    task: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "GroupFilters":
        """As `RolloutFilters.of`."""
        names = [f.name for f in fields(cls)]
        for name, value in given.items():
            if name not in names:
                raise FilterError(f"unknown filter {quoted(name)}; known: {', '.join(names)}")
            if "\0" in value:
                raise FilterError(
                    f"the filter {name} must not hold a NUL character (%00 in an address): no text in the data pool has one"
                )
        for name, known in (("state", GroupState), ("purpose", Purpose)):
            if given.get(name) and given[name] not in set(known):
                raise FilterError(
                    f"the filter {name} must be one of {', '.join(known)}, not {quoted(given[name])}"
                )
        return cls(**{name: value for name, value in given.items() if value.strip()})
