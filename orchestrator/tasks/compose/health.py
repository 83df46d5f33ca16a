"""A service's `healthcheck`, by docker's rules."""

import re
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks import key_values as values
from orchestrator.tasks.compose.document import words_of
from sandboxes.base import ServiceHealth

_DURATION: Final = re.compile(
    r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6}(?:\.[0-9]{1,6})?)s)?(?:([0-9]{1,9})ms)?(?:([0-9]{1,9})us)?"
)
_UNITS: Final = (3600.0, 60.0, 1.0, 1e-3, 1e-6)
_SECONDS: Final = {
    "interval": ("interval_s", values.pause),
    "timeout": ("timeout_s", values.seconds),
    "start_period": ("start_period_s", values.pause),
    "start_interval": ("start_interval_s", values.pause),
}


def health_of(value: Any, at: str) -> ServiceHealth | None:
    """The check; None: it is switched off."""
    if not isinstance(value, dict):
        raise ValueError(f"{at}healthcheck must be a mapping, got {quoted(value)}")
    if value.get("disable") is True:
        return None
    found: dict[str, Any] = {}
    for key, each in value.items():
        if key in _SECONDS:
            name, must = _SECONDS[key]
            seconds = duration(each)
            if seconds is None:
                raise ValueError(
                    f"{at}healthcheck.{key} must be a duration such as 1m30s, got {quoted(each)}"
                )
            if (flaw := must(seconds)) is not None:
                raise ValueError(f"{at}healthcheck.{key} must be {flaw}, got {quoted(each)}")
            found[name] = seconds
        elif key == "retries":
            if (flaw := values.retries(each)) is not None:
                raise ValueError(f"{at}healthcheck.retries must be {flaw}, got {quoted(each)}")
            found["retries"] = each
        elif key not in ("test", "disable"):
            raise ValueError(f"{at}healthcheck.{key} is not honoured: remove it")
    argv = _argv(value.get("test"), at)
    return None if argv is None else ServiceHealth(argv=argv, **found)


def _argv(test: Any, at: str) -> tuple[str, ...] | None:
    if isinstance(test, str) and test.strip():
        return "/bin/sh", "-c", test
    if isinstance(test, list) and test and all(isinstance(each, str | int) for each in test):
        kind, *rest = words_of("healthcheck.test", test, at)
        if kind == "NONE" and not rest:
            return None
        if kind == "CMD" and rest:
            return tuple(rest)
        if kind == "CMD-SHELL" and len(rest) == 1:
            return "/bin/sh", "-c", rest[0]
    raise ValueError(
        f'{at}healthcheck.test must be a command, ["CMD", …], ["CMD-SHELL", …] or ["NONE"], got {quoted(test)}'
    )


def duration(value: Any) -> float | None:
    """Seconds of a text such as 1m30s, as compose writes them; None: it is another one.

    >>> duration("1m30s"), duration("500ms"), duration("2"), duration("")
    (90.0, 0.5, None, None)
    """
    found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if found is None:
        return 0.0 if value == "0" or (value == 0 and type(value) is int) else None
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS, strict=True) if part)
