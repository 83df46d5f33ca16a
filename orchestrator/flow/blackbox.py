"""Running a black box: a program inside the sandbox that reaches the gateway through the bound socket, and nothing else."""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import anyio
from scaffolds.base import AgentLimits, BlackBox, Endpoint, Fault, Launch, TaskView

from orchestrator.bus.feed import beside
from orchestrator.clock import clock
from orchestrator.contracts.errors import AgentTimeout, InfraFailure, PenstockError, PolicyFailure
from orchestrator.contracts.states import FailureClass
from orchestrator.flow.clocks import Clocks
from orchestrator.flow.outcome import LOG_BYTES, Outcome
from orchestrator.flow.watched import WatchedBox
from orchestrator.gateway_client import Activity, OpenSession
from orchestrator.log import get
from sandboxes.base import GATEWAY_SOCKET, ExecResult, Sandbox

log = get(__name__)

IN_TIME = 0.9  # of its time limit: a program that says earlier that its time ended is not believed
ASK_S = 1.0  # between two questions to the gateway, and the longest wait for an answer
HOST = "http://gateway"  # any name: the socket decides where requests go


def endpoint_of(session: OpenSession, box: Sandbox | None = None) -> Endpoint:
    """The session as seen from inside (`box`: of a provider that cannot show the usual path)."""
    socket = box.path(GATEWAY_SOCKET) if box is not None else GATEWAY_SOCKET
    return Endpoint(f"{HOST}{session.path}", session.token, socket)


async def run_black(
    scaffold: BlackBox,
    task: TaskView,
    box: Sandbox,
    session: OpenSession,
    clocks: Clocks,
    limits: AgentLimits,
    activity: Callable[[], Awaitable[Activity]],
) -> Outcome:
    """One episode under `clocks`. `activity` asks the gateway about the session. The program's files are placed already.

    Raises whatever ended it early.
    """
    gateway = endpoint_of(session, box)
    if (install := scaffold.install()) is not None:
        installed = await _run(box, install, limits.timeout_s)
        if not installed.ok:
            raise InfraFailure(
                f"the scaffold's install ended with exit code {installed.exit_code}: {_tail(installed)}"
            )

    launch, sight = scaffold.launch(task, gateway, limits), Sight()
    try:
        async with beside(partial(follow, activity, clocks, min(ASK_S, clocks.stall_s / 4), sight)):
            # Without a limit of its own: the clocks know how much of its time was the platform's.
            ended = await clocks.run(partial(_run, WatchedBox(box, clocks), launch, math.inf))
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(clock().abort_s):
            await scaffold.on_abort(box)
        raise
    answer = await scaffold.harvest(box, ended)
    fault = scaffold.classify(ended, answer)
    if fault is None:
        return Outcome(FailureClass.COMPLETED, answer=answer, log=_tail(ended), own_word=True)
    failure = _class(fault)
    if fault.kind == "timeout" and clocks.elapsed_s < IN_TIME * limits.timeout_s:
        failure = (
            FailureClass.INFRA_FAILURE
        )  # it died of something: whose doing that was is judged as for any other end
    if failure is FailureClass.INFRA_FAILURE:
        sight.looked(await activity())  # a gateway that is away for good raises here
    return Outcome(
        failure,
        fault.reason,
        answer,
        _tail(ended),
        own_word=True,
        platform=sight.failed(clock().gateway_grudge_s),
    )


@dataclass(slots=True)
class Sight:
    """What a runner saw of the gateway during one program: evidence that nothing in a sandbox can forge. Times are `time.monotonic()`."""

    instance: str = ""
    seen_at: float = field(default_factory=time.monotonic)
    failed_at: float | None = None
    how: str = ""

    def looked(self, seen: Activity | None) -> None:
        """Another look; None: no answer in time."""
        now = time.monotonic()
        if seen is None:
            if now - self.seen_at > clock().gateway_silent_s:
                self.failed_at, self.how = now, "it was silent while the program ran"
            return
        if self.instance and seen.instance != self.instance:
            self.failed_at, self.how = now, "it started anew while the program ran"
        self.instance, self.seen_at = seen.instance, now

    def failed(self, within_s: float) -> str:
        """How the gateway failed in the last `within_s` seconds; empty: it did not."""
        recent = self.failed_at is not None and time.monotonic() - self.failed_at < within_s
        return self.how if recent else ""


async def follow(
    activity: Callable[[], Awaitable[Activity]], clocks: Clocks, period_s: float, sight: Sight
) -> None:
    """Tell the clocks what the gateway sees, until cancelled. While the gateway is silent, whoever may wait for it waits for the platform."""
    last = Activity(0, 0, 0.0)
    while True:
        seen: Activity | None = None
        with anyio.move_on_after(ASK_S):
            try:
                seen = await activity()
            except PenstockError as error:
                log.info("gateway.silent", error=str(error))
        sight.looked(seen)
        last = seen or last
        clocks.observed(waiting=seen is None or seen.in_flight > 0, calls=last.calls, queued_s=last.queued_s)
        clocks.replayed(last.replayed_s)
        await anyio.sleep(period_s)


async def _run(box: Sandbox, launch: Launch, timeout_s: float) -> ExecResult:
    return await box.exec(
        launch.argv, timeout_s=timeout_s, env=launch.env, cwd=launch.cwd, stdin=launch.stdin
    )


def _class(fault: Fault) -> FailureClass:
    match fault.kind:
        case "policy":
            return PolicyFailure.failure
        case "timeout":
            return AgentTimeout.failure
        case "infra":
            return InfraFailure.failure


def _tail(ended: ExecResult) -> str:
    text = (ended.stdout[-LOG_BYTES:] + ended.stderr[-LOG_BYTES:]).decode(errors="replace")
    return text[-LOG_BYTES:]
