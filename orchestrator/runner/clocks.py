"""The clocks of one attempt: the agent's own time with its limit, and the stall rule.

The agent's own time is the attempt's time without waiting for the platform (trajectory.waiting). The agent waits while at least one call is in
flight, none is generated and no tool runs. A white box's completions and tools pass through here. For a black box, the gateway is queried
(`observed`): it sees calls, but no tools. A black box's own time is at least its generation time, and at least the CPU time of its programs,
counted up to the wall time in which it was used.

*Stall*: no completion open, no output and no CPU time of any program for `stall_s` seconds. While a tool runs, the agent caused it
(`timeout`); otherwise the scaffold hangs (`Hung`: the cause depends on whether the policy has produced a step).

A clock that ends the attempt first has the gateway cut off its completions in flight, so that what the policy has sampled is on record.

A completion that stays open hangs as well, and is bounded by `completion_s`. The time for which the gateway reports that it holds the call,
because no server can generate, does not count towards this bound.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio

from orchestrator.bus.feed import in_background
from orchestrator.contracts.errors import AgentTimeout, Hung, RolloutFailure
from orchestrator.gateway_client import Activity, Seal
from orchestrator.runtime.liveness import current
from orchestrator.trajectory.waiting import Account, CallTime
from sandboxes.base import Process

T = TypeVar("T")

Held = Callable[[], Awaitable[float]]
"""Queries the gateway: seconds for which it has held the session's completions in flight."""
CutOff = Callable[[], Awaitable[None]]
"""Has the gateway end the completions in flight and record what they have sampled. Raises nothing."""

POLL_INTERVAL_S = 1.0  # longest time between two looks
ROUNDING_S = 1e-5  # tolerance: a seal's seconds may be this much below the last activity's
CPU_NOISE_S = 0.005  # less CPU time than this since the last movement is the sandbox's own bookkeeping


class OpenCompletion:
    """A completion in flight; `generated` reports the policy's share of its time."""

    def __init__(self, times: CallTime) -> None:
        self.opened = times.began
        self._times = times

    def generated(self, *stretches: tuple[float, float]) -> None:
        """The reply has arrived. `stretches`: (from, to) in seconds before now."""
        now = time.monotonic()
        self._times.answered(now, [(now - start, now - end) for start, end in stretches])


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """A gateway's report on a black box. Seconds; `seen_at` is `time.monotonic()`."""

    waiting: float = 0.0
    undecided: float = 0.0
    generation: float = 0.0
    in_flight: bool = False
    seen_at: float = 0.0
    instance: str | None = None


class Clocks:
    """One attempt. Times are `time.monotonic()`; `timeout_s`, `stall_s` and `completion_s` are seconds; `stall_s` None: as long as the
    time limit, of several runs each one's. `started`: the start of the attempt, before
    its session and sandbox existed; for a resumed attempt, under an earlier lease."""

    def __init__(
        self,
        *,
        timeout_s: float,
        stall_s: float | None,
        completion_s: float,
        held: Held | None = None,
        cut_off: CutOff | None = None,
        started: float | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._held = held
        self._cut_off = cut_off
        self._cutting = False  # a clock has ended the run, and its work goes on while completions are cut off
        # Start of an open completion, and the seconds for which it was held.
        self._forgiven: tuple[float, float] = (0.0, 0.0)
        self._stall_s = stall_s
        self._completion_s = completion_s
        self._began = self._moved = time.monotonic()
        self._started = self._began if started is None else started
        self._ended: float | None = None
        self._past_s = 0.0  # of earlier runs
        self._own_before_s = 0.0  # the agent's own time at the start of this run
        self._account = Account()  # of a white box: its completions and tools
        self._open: set[OpenCompletion] = set()
        self._policy_since: float | None = None  # since when a black box is seen waiting for the policy
        self._calls = 0
        # Of a black box, by the gateway process that answered last.
        self._reported: GatewayReport | None = None
        self._before = GatewayReport()  # sum over earlier gateway processes
        # Of a black box's programs: CPU time, at most the time between two looks.
        self._busy_s, self._busy_at = 0.0, self._began
        self.replayed_s = 0.0
        self.counted_s = 0.0  # after runs, of work that is `counted`
        self._programs: dict[Process, float] = {}  # CPU seconds at the last movement
        self._used: dict[Process, float] = {}  # CPU seconds at the last look

    @property
    def stall_s(self) -> float:
        """Seconds without any movement that end the attempt."""
        return self._timeout_s if self._stall_s is None else self._stall_s

    @property
    def attempt_s(self) -> float:
        """Seconds since the attempt started."""
        return time.monotonic() - self._started

    @property
    def elapsed_s(self) -> float:
        """Seconds between the start and the end of each `run`, plus those of replayed completions."""
        return self._past_s + (self._ended or time.monotonic()) - self._began + self.replayed_s

    @property
    def waiting_s(self) -> float:
        """Seconds in which the agent is known to have waited for the platform."""
        now = self._ended or time.monotonic()
        reported = self._before.waiting + (self._reported.waiting if self._reported is not None else 0.0)
        return min(self._past_s + now - self._began, self._account.totals(now).waiting + reported)

    @property
    def generation_s(self) -> float:
        """Seconds in which at least one of its completions was generated, without replayed ones."""
        reported = self._before.generation + (
            self._reported.generation if self._reported is not None else 0.0
        )
        return self._account.totals(self._ended or time.monotonic()).generation + reported

    @property
    def own_s(self) -> float:
        """The agent's own time: in its runs, and what was `counted` after them."""
        return self.own_in_runs_s + self.counted_s

    @property
    def own_in_runs_s(self) -> float:
        """The agent's own time in every `run`. The time of an open completion counts, except the part known to be waiting."""
        own = self.elapsed_s - self.waiting_s
        if self._reported is None:
            return own
        return max(own, min(self.elapsed_s, max(self.generation_s, self._busy_s) + self.replayed_s))

    @property
    def own_run_s(self) -> float:
        """The agent's own time in the newest `run` alone."""
        return self.own_in_runs_s - self._own_before_s

    @property
    def _least_own_s(self) -> float:
        """The agent's own time in its runs, without time that may still turn out to be waiting."""
        now = time.monotonic()
        own = self.elapsed_s - self.waiting_s - self._account.totals(now).undecided
        if self._reported is None:
            return own
        own -= self._reported.undecided + (now - self._reported.seen_at if self._reported.in_flight else 0.0)
        return max(own, max(self.generation_s, self._busy_s) + self.replayed_s)

    async def run(self, work: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run `work`. Raises AgentTimeout or Hung when a clock ends it, after completions in flight were cut off and `work` has cleaned up. An
        attempt of several steps runs one after the other: each has the whole `timeout_s`, which may differ, and the time in between is not the
        agent's."""
        if timeout_s is not None:
            self._timeout_s = timeout_s
        if self._ended is not None:
            self._past_s += self._ended - self._began
        now = time.monotonic()
        repeated, self._ended = self._ended is not None, None
        self._began = self._moved = self._busy_at = now
        self._own_before_s = self._least_own_s if repeated else 0.0
        failure: RolloutFailure | None = None
        try:
            with anyio.CancelScope() as scope:

                async def watch() -> None:
                    nonlocal failure
                    failure = await self._until_over()
                    self._cutting = True
                    if self._cut_off is not None:
                        await self._cut_off()
                    scope.cancel()

                async with in_background(watch):
                    done = await work()
        except Exception as error:
            # Calls that are cut off fail, and the agent's work may fail of it. The clock had decided before.
            if failure is None:
                raise
            raise failure from error
        finally:
            self._ended, self._cutting = time.monotonic(), False
        if failure is not None:
            raise failure
        return done

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Wraps work after a `run` in which the agent, too, can go on: its time is the agent's own, of no run."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.counted_s += time.monotonic() - began

    @contextmanager
    def completion(self) -> Iterator[OpenCompletion]:
        """Wraps one call of the policy. A call that ends by an error was waiting; one that was cancelled or cut off counts as generated."""
        times = self._account.call(time.monotonic())
        times.requested(times.began)
        opened = OpenCompletion(times)
        self._open.add(opened)
        try:
            yield opened
        except Exception:
            if not self._cutting:
                opened.generated()
            raise
        finally:
            self._open.discard(opened)
            self._moved = time.monotonic()
            times.over(self._moved)

    @contextmanager
    def tool(self) -> Iterator[None]:
        """Wraps one call of a tool."""
        self._account.tool_began(time.monotonic())
        try:
            yield
        finally:
            self._account.tool_ended(time.monotonic())

    def observed(self, seen: Activity | None) -> None:
        """Record the gateway's view of a black box; None: it is silent. Until it answers, the agent may be waiting for it."""
        now = time.monotonic()
        waiting = seen is None or seen.in_flight > 0
        calls = self._calls if seen is None else seen.calls
        if waiting or self._policy_since is not None or calls != self._calls:
            self._moved = now
        if not waiting:
            self._policy_since = None
        elif self._policy_since is None or calls != self._calls:
            self._policy_since = now
        self._calls = calls
        if seen is None:
            self._reported = replace(self._reported or GatewayReport(seen_at=now), in_flight=True)
            return
        self._record(
            GatewayReport(
                waiting=seen.queued_s,
                undecided=seen.undecided_s,
                generation=seen.generation_s,
                in_flight=seen.in_flight > 0,
                seen_at=now,
                instance=seen.instance,
            )
        )
        self.replayed(seen.replayed_s)

    def sealed(self, seal: Seal) -> None:
        """Record the gateway's final report on a black box."""
        instance = self._reported.instance if self._reported is not None else None
        self._record(
            GatewayReport(
                waiting=seal.queued_s,
                generation=seal.generation_s,
                seen_at=time.monotonic(),
                instance=instance,
            )
        )

    def _record(self, report: GatewayReport) -> None:
        """Record a report. A restarted gateway does not know the time before, so its numbers fall."""
        before = self._reported
        restarted = before is not None and before.instance not in (None, report.instance)
        decreased = before is not None and (
            report.waiting < before.waiting - ROUNDING_S or report.generation < before.generation - ROUNDING_S
        )
        if before is not None and (restarted or decreased):
            # Open calls died with it.
            lost = (
                before.undecided + report.seen_at - before.seen_at if restarted and before.in_flight else 0.0
            )
            self._before = GatewayReport(
                waiting=self._before.waiting + before.waiting + lost,
                generation=self._before.generation + before.generation,
            )
        self._reported = report

    def replayed(self, total_s: float) -> None:
        """All completions replayed by a resume so far took `total_s`: it is the agent's time, although it was spent earlier."""
        self.replayed_s = max(self.replayed_s, total_s)

    def started(self, process: Process) -> None:
        """A program starts in the sandbox: a white box's tool, or a black box itself."""
        self._moved = time.monotonic()
        self._programs[process] = self._used[process] = process.cpu_s()
        self._account.tool_began(self._moved)

    def ended(self, process: Process) -> None:
        """The program has ended. A repeated call does nothing."""
        if self._programs.pop(process, None) is not None:
            self._moved = time.monotonic()
            self._work(self._moved, {process: process.cpu_s()})
            del self._used[process]
            self._account.tool_ended(self._moved)

    async def _until_over(self) -> RolloutFailure:
        while True:
            current().progressed()  # while the clocks run, they judge the attempt
            now = time.monotonic()
            since = min((each.opened for each in self._open), default=self._policy_since)
            if since is not None:
                if await self._too_long(since):
                    return Hung(f"a completion has been open for {self._completion_s:g} s")
                self._moved = now
            # It is not yet known whose time an open completion is, so only the rest counts.
            left = self._timeout_s - (self._least_own_s - self._own_before_s)
            if left <= 0:
                return AgentTimeout(f"wall clock: the limit of {self._timeout_s:g} s")
            self._look(now)
            idle = now - self._moved
            if idle >= self.stall_s:
                return self._stalled()
            await anyio.sleep(min(max(0.001, left), self.stall_s - idle, POLL_INTERVAL_S, self.stall_s / 4))

    async def _too_long(self, since: float) -> bool:
        """Whether the completion open since `since` exceeds its limit, without the time for which the gateway held it."""
        forgiven_since, held_s = self._forgiven
        held_s = held_s if forgiven_since == since else 0.0
        if time.monotonic() - since - held_s < self._completion_s:
            return False
        if self._held is not None:
            self._forgiven = (since, held_s := await self._held())
        return time.monotonic() - since - held_s >= self._completion_s

    def _look(self, now: float) -> None:
        cpu = {process: process.cpu_s() for process in self._programs}
        self._work(now, cpu)
        worked = any(cpu[process] - before > CPU_NOISE_S for process, before in self._programs.items())
        last_output = max((process.last_output for process in cpu), default=0.0)
        if worked or last_output > self._moved:
            self._moved = now if worked else last_output
            self._programs.update(cpu)

    def _work(self, now: float, cpu: Mapping[Process, float]) -> None:
        """Count the CPU time since the last look."""
        used = sum(max(0.0, seconds - self._used[process]) for process, seconds in cpu.items())
        self._used.update(cpu)
        self._busy_s += min(used, max(0.0, now - self._busy_at))
        self._busy_at = now

    def _stalled(self) -> RolloutFailure:
        if self._programs:
            return AgentTimeout(f"stall: a command neither printed nor worked for {self.stall_s:g} s")
        return Hung(f"stall: the scaffold did nothing for {self.stall_s:g} s")
