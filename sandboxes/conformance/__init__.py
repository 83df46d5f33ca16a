"""What every sandbox provider must do, as checks that a third party can run: `python -m sandboxes.conformance NAME`.

`check(provider)` runs them all against the real thing. Inside, they want `sh`, coreutils and `python3`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from sandboxes.base import Provider
from sandboxes.conformance import endings, escapes, files, isolation, limits, programs
from sandboxes.conformance.registry import CHECKS, Check

__all__ = ["CHECKS", "Check", "CheckResult", "check", "checks_for", "run_check"]

_SUITE = (programs, files, limits, endings, isolation, escapes)
_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check went. `isolation` checks need not pass where `Provider.isolated` is false."""

    name: str
    passed: bool
    isolation: bool
    detail: str
    seconds: float


def checks_for(provider: Provider) -> list[Check]:
    """The checks that may be run: attempts to escape only where something holds them."""
    return [each for each in CHECKS if provider.isolated or not each.escape]


async def check(provider: Provider) -> list[CheckResult]:
    """Every check, one after the other. Never raises for what a provider does wrong."""
    return [await run_check(provider, each) for each in checks_for(provider)]


async def run_check(provider: Provider, each: Check) -> CheckResult:
    """One check; whatever it raises is its failure, and so is taking longer than 90 s."""
    assert provider.isolated or not each.escape, f"{each.name!r} would harm this machine"
    began = time.monotonic()
    detail = ""
    try:
        with anyio.fail_after(_LIMIT_S):
            await each.body(provider)
    except Exception as error:  # noqa: BLE001 - reported as the check's result
        detail = f"{type(error).__name__}: {error}"
    return CheckResult(each.name, not detail, each.isolation, detail, time.monotonic() - began)
