"""The clocks of one attempt: the agent's own wall-clock limit, and the stall rule.

The limit counts the agent's time and the generation of its completions, not the platform's: while a completion is open the clock stands
still, and goes on with what was spent generating. *Stall*: no completion open, no output and no CPU time of any program for `stall_s`
seconds. While a tool runs that is the agent's doing (`timeout`), else the scaffold hangs (`infra_failure`).

A completion that stays open is the platform's fault as well, and bounded by `completion_s`, unless the gateway says that it holds the call
because nobody is there to generate: then it is waited for, for however long that takes. The completions of a white box pass through here;
those of a black box are known by asking the gateway (`observed`).
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from orchestrator.bus.feed import beside
from orchestrator.contracts.errors import AgentTimeout, InfraFailure, RolloutFailure
from orchestrator.progress import current
from sandboxes.base import Process

T = TypeVar("T")

Held = Callable[[], Awaitable[float]]
"""Asks the gateway: seconds for which it has held the session's completions in flight."""

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

    def __init__(
        self, *, timeout_s: float, stall_s: float, completion_s: float, held: Held | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._held = held
        self._forgiven: tuple[float, float] = (0.0, 0.0)  # of the completion open since then: seconds held
        self.stall_s = stall_s
        self._completion_s = completion_s
        self._began = self._moved = time.monotonic()
        self._ended: float | None = None
        self._deadline = self._began + timeout_s
        self._open: set[OpenCompletion] = set()
        self._opened = 0.0  # since when some completion has been open
        self._generated = 0.0  # the longest generation among those that overlap
        self._asked: float | None = None  # since when a black box has been seen to wait for the policy
        self._calls, self._queued_s = 0, 0.0
        self.replayed_s = 0.0
        self._programs: dict[Process, float] = {}  # CPU seconds when something last moved

    @property
    def elapsed_s(self) -> float:
        """Seconds since `run` began, until it ended, and those of replayed completions."""
        return (self._ended or time.monotonic()) - self._began + self.replayed_s

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

    def observed(self, *, waiting: bool, calls: int, queued_s: float) -> None:
        """What the gateway sees of a black box: whether it waits for the policy, how often it has asked, what its calls have queued."""
        now = time.monotonic()
        if waiting or self._asked is not None or calls != self._calls:
            self._moved = now
        if not waiting:
            self._asked = None
        elif self._asked is None or calls != self._calls:
            self._asked = now
        self._deadline += max(0.0, queued_s - self._queued_s)
        self._calls, self._queued_s = calls, queued_s

    def replayed(self, total_s: float) -> None:
        """Completions that a resume served again, all so far, had taken `total_s`: the agent's time, although it was spent before."""
        more = max(0.0, total_s - self.replayed_s)
        self.replayed_s += more
        self._deadline -= more

    def started(self, process: Process) -> None:
        """A program runs in the sandbox from now on."""
        self._moved = time.monotonic()
        self._programs[process] = process.cpu_s()

    def ended(self, process: Process) -> None:
        """It does no longer. Telling it twice does nothing."""
        if self._programs.pop(process, None) is not None:
            self._moved = time.monotonic()

    async def _until_over(self) -> RolloutFailure:
        while True:
            current().moved()  # while the clocks run, an attempt is theirs to judge
            now = time.monotonic()
            since = self._opened if self._open else self._asked
            if since is not None:
                if await self._too_long(since):
                    return InfraFailure(f"a completion has been open for {self._completion_s:g} s")
                self._moved = now
            # Of an open completion nobody knows yet whose time it is: what counts is that it began in time.
            if (now if since is None else since) >= self._deadline:
                return AgentTimeout(f"wall clock: the limit of {self._timeout_s:g} s")
            self._look(now)
            idle = now - self._moved
            if idle >= self.stall_s:
                return self._stalled()
            await anyio.sleep(
                min(max(0.001, self._deadline - now), self.stall_s - idle, LOOK_S, self.stall_s / 4)
            )

    async def _too_long(self, since: float) -> bool:
        """Whether the completion that is open since then has been so for too long, apart from the time for which the gateway holds it."""
        began, held_s = self._forgiven
        held_s = held_s if began == since else 0.0
        if time.monotonic() - since - held_s < self._completion_s:
            return False
        if self._held is not None:
            self._forgiven = (since, held_s := await self._held())
        return time.monotonic() - since - held_s >= self._completion_s

    def _look(self, now: float) -> None:
        cpu = {process: process.cpu_s() for process in self._programs}
        worked = any(cpu[process] - before > CPU_NOISE_S for process, before in self._programs.items())
        said = max((process.last_output for process in cpu), default=0.0)
        if worked or said > self._moved:
            self._moved = now if worked else said
            self._programs.update(cpu)

    def _stalled(self) -> RolloutFailure:
        if self._programs:
            return AgentTimeout(f"stall: a command neither printed nor worked for {self.stall_s:g} s")
        return InfraFailure(f"stall: the scaffold did nothing for {self.stall_s:g} s")
