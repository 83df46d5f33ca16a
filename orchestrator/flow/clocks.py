"""The clocks of one attempt: the agent's own wall-clock limit, and the stall rule.

The limit counts the agent's time and the generation of its completions, not the platform's: while a completion is open the clock stands
still, and goes on with what was spent generating. *Stall*: no completion open, no output and no CPU time of any program for `stall_s`
seconds. While a tool runs that is the agent's doing (`timeout`), else the scaffold hangs (`infra_failure`).

A completion that stays open is the platform's fault as well, and bounded by `completion_s`.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import anyio

from orchestrator.bus.feed import beside
from orchestrator.contracts.errors import AgentTimeout, InfraFailure, RolloutFailure
from sandboxes.base import WORK, ArtifactLimits, Artifacts, ExecResult, File, Limits, Process, Sandbox

T = TypeVar("T")

LOOK_S = 1.0  # longest time between two looks
CPU_NOISE_S = 0.005  # less CPU time than this, since something last moved, is the sandbox's own bookkeeping


class OpenCompletion:
    """A completion in flight; `generated` says how much of its time was the policy's."""

    def __init__(self) -> None:
        self.generation_s = 0.0

    def generated(self, seconds: float) -> None:
        self.generation_s = seconds


class Clocks:
    """One attempt. Times are `time.monotonic()`; `timeout_s`, `stall_s` and `completion_s` are seconds."""

    def __init__(self, *, timeout_s: float, stall_s: float, completion_s: float) -> None:
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._completion_s = completion_s
        self._began = self._moved = time.monotonic()
        self._ended: float | None = None
        self._deadline = self._began + timeout_s
        self._open: set[OpenCompletion] = set()
        self._opened = 0.0  # since when some completion has been open
        self._generated = 0.0  # the longest generation among those that overlap
        self._programs: dict[Process, float] = {}  # CPU seconds when something last moved

    @property
    def elapsed_s(self) -> float:
        """Seconds since `run` began, until it ended."""
        return (self._ended or time.monotonic()) - self._began

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, as it stands now."""
        return max(0.0, self._deadline - time.monotonic())

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`. Raises AgentTimeout or InfraFailure when a clock ends it, after `work` has cleaned up."""
        self._began = self._moved = time.monotonic()
        self._deadline = self._began + self._timeout_s
        failure: RolloutFailure | None = None
        try:
            with anyio.CancelScope() as scope:

                async def watch() -> None:
                    nonlocal failure
                    failure = await self._until_over()
                    scope.cancel()

                async with beside(watch):
                    return await work()
        finally:
            self._ended = time.monotonic()
        assert failure is not None
        raise failure

    @contextmanager
    def completion(self) -> Iterator[OpenCompletion]:
        """Around one call of the policy."""
        opened = OpenCompletion()
        if not self._open:
            self._opened, self._generated = time.monotonic(), 0.0
        self._open.add(opened)
        try:
            yield opened
        finally:
            self._open.discard(opened)
            self._generated = max(self._generated, opened.generation_s)
            if not self._open:
                now = time.monotonic()
                self._deadline += max(0.0, now - self._opened - self._generated)
                self._moved = now

    @contextmanager
    def program(self, process: Process) -> Iterator[None]:
        """Around the life of one program in the sandbox."""
        self._moved = time.monotonic()
        self._programs[process] = process.cpu_s()
        try:
            yield
        finally:
            del self._programs[process]
            self._moved = time.monotonic()

    async def _until_over(self) -> RolloutFailure:
        while True:
            now = time.monotonic()
            if self._open:
                if now - self._opened >= self._completion_s:
                    return InfraFailure(f"a completion has been open for {self._completion_s:g} s")
                wait = self._opened + self._completion_s - now
            else:
                if now >= self._deadline:
                    return AgentTimeout(f"wall clock: the limit of {self._timeout_s:g} s")
                self._look(now)
                idle = now - self._moved
                if idle >= self._stall_s:
                    return self._stalled()
                wait = min(self._deadline - now, self._stall_s - idle)
            await anyio.sleep(min(wait, LOOK_S, self._stall_s / 4))

    def _look(self, now: float) -> None:
        cpu = {process: process.cpu_s() for process in self._programs}
        worked = any(cpu[process] - before > CPU_NOISE_S for process, before in self._programs.items())
        said = max((process.last_output for process in cpu), default=0.0)
        if worked or said > self._moved:
            self._moved = now if worked else said
            self._programs.update(cpu)

    def _stalled(self) -> RolloutFailure:
        if self._programs:
            return AgentTimeout(f"stall: a command neither printed nor worked for {self._stall_s:g} s")
        return InfraFailure(f"stall: the scaffold did nothing for {self._stall_s:g} s")


class WatchedBox:
    """A sandbox whose programs the clocks see; implements `sandboxes.base.Sandbox`. What a white box works in."""

    def __init__(self, box: Sandbox, clocks: Clocks) -> None:
        self._box = box
        self._clocks = clocks

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def limits(self) -> Limits:
        return self._box.limits

    def path(self, inside: str) -> str:
        return self._box.path(inside)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        stdin: bytes | None = None,
    ) -> ExecResult:
        process = await self._box.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
        with self._clocks.program(process):
            try:
                return await process.wait()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await process.kill()
                raise

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        stdin: bytes | None = None,
    ) -> Process:
        return await self._box.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)

    async def put(self, files: Mapping[str, File]) -> None:
        await self._box.put(files)

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        return await self._box.get(path, max_bytes=max_bytes)

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        return await self._box.changed(limits)

    async def close(self) -> None:
        await self._box.close()
