"""The list of checks, and what a check may use."""

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
    """Signals that a provider does not do what the port promises."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `isolation`: only a provider with `isolated = True` must keep it. `escape`: it is also tried with no other, since
    nothing would hold it."""

    name: str
    body: Body
    isolation: bool
    escape: bool = False


CHECKS: list[Check] = []
"""Filled by the modules of this package when they are imported; the order is the order of running."""


def check(*, isolation: bool = False, escape: bool = False) -> Callable[[Body], Body]:
    """Register a check; its name is the function's, which says what must hold."""

    def register(body: Body) -> Body:
        CHECKS.append(Check(body.__name__.replace("_", " "), body, isolation, escape))
        return body

    return register


def require(condition: object, otherwise: object) -> None:
    """`Unmet` with what was found instead, unless `condition`."""
    if not condition:
        fail(otherwise)


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
    """A number of seconds to sleep that no other process on this machine sleeps: recognises its process."""
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
