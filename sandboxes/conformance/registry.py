"""The list of checks, and the functions for checks."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandboxes.base import ExecResult, Provider, Sandbox

Body = Callable[[Provider], Awaitable[None]]


class Unmet(AssertionError):
    """Signals that a provider breaks a promise of the port."""


class Escaped(Unmet):
    """Signals that a program got out of its sandbox, or that the outside can be seen from inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceCheck:
    """One promise. `isolation`: only a provider with `isolated = True` must keep it. `escape`: only such a provider runs it at all, since
    another would not contain it."""

    name: str
    body: Body
    isolation: bool
    escape: bool = False


CHECKS: list[ConformanceCheck] = []
"""Filled by the modules of this package when they are imported; the order is the order of running."""


def check(*, isolation: bool = False, escape: bool = False) -> Callable[[Body], Body]:
    """Register a check. Its name is the function's, which states the promise."""

    def register(body: Body) -> Body:
        CHECKS.append(
            ConformanceCheck(
                name=body.__name__.replace("_", " "), body=body, isolation=isolation, escape=escape
            )
        )
        return body

    return register


def require(condition: object, otherwise: object) -> None:
    """Raise `Unmet` with the value found instead, unless `condition`."""
    if not condition:
        fail(otherwise)


def confined(condition: object, otherwise: object) -> None:
    """Raise `Escaped` with what got out, unless `condition`."""
    if not condition:
        raise Escaped(str(otherwise))


def fail(message: object) -> NoReturn:
    raise Unmet(str(message))


async def shell(sandbox: Sandbox, script: str, timeout_s: float = 30.0) -> ExecResult:
    """Run a script of the POSIX shell in the work directory."""
    return await sandbox.exec(["sh", "-c", script], timeout_s=timeout_s)


async def output(sandbox: Sandbox, script: str) -> str:
    """The stdout of a script that must succeed."""
    result = await shell(sandbox, script)
    require(result.ok, f"{script!r} ended with {result}")
    return result.stdout.decode()


def long_sleep() -> str:
    """A number of seconds to sleep that no other process on this machine uses: it identifies its process."""
    return f"{300 + secrets.randbelow(300)}.{secrets.randbelow(10**9):09d}"


def sleepers(seconds: str) -> list[int]:
    """Processes of this machine that sleep for exactly that long."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if seconds.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found
