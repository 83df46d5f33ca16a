"""The contract of every sandbox provider, as checks that a third party can run: `python -m sandboxes.conformance NAME`,
or with an image of the provider's store as a second argument.

`check(provider)` runs them all against the real provider. Inside, they need `sh`, coreutils and `python3`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from sandboxes.base import Provider
from sandboxes.conformance import (
    background,
    beginnings,
    endings,
    escapes,
    files,
    isolation,
    limits,
    programs,
    sessions,
)
from sandboxes.conformance.registry import CHECKS, ConformanceCheck, Escaped

__all__ = ["CHECKS", "CheckResult", "ConformanceCheck", "check", "checks_for", "run_check"]

_SUITE = (programs, beginnings, background, files, limits, endings, isolation, escapes, sessions)
_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check. `isolation` checks need not pass if `Provider.isolated` is false. `escaped`: it failed because a program got out of
    its sandbox, or saw what is outside."""

    name: str
    passed: bool
    isolation: bool
    detail: str
    seconds: float
    escaped: bool = False


def checks_for(provider: Provider) -> list[ConformanceCheck]:
    """The checks that may be run. Escape attempts are included only if the provider isolates."""
    return [each for each in CHECKS if provider.isolated or not each.escape]


async def check(provider: Provider) -> list[CheckResult]:
    """Run every check, one after the other. Never raises for a provider's faults."""
    return [await run_check(provider, each) for each in checks_for(provider)]


def _errors(error: BaseException) -> list[BaseException]:
    """The error itself; for a group of tasks, their errors: an escape first, since it matters most."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    found = [one for each in error.exceptions for one in _errors(each)]
    return sorted(found, key=lambda one: not isinstance(one, Escaped))


async def run_check(provider: Provider, each: ConformanceCheck) -> CheckResult:
    """Run one check. Any exception is its failure, and so is a duration above 90 s."""
    assert provider.isolated or not each.escape, f"{each.name!r} would harm this machine"
    started_at = time.monotonic()
    detail, escaped = "", False
    try:
        with anyio.fail_after(_LIMIT_S):
            await each.body(provider)
    except Exception as error:  # noqa: BLE001 - reported as the check's result
        first = _errors(error)[0]
        detail, escaped = f"{type(first).__name__}: {first}", isinstance(first, Escaped)
    return CheckResult(
        name=each.name,
        passed=not detail,
        isolation=each.isolation,
        detail=detail,
        seconds=time.monotonic() - started_at,
        escaped=escaped,
    )
