"""Running a black box: a program inside the sandbox that reaches only the gateway, through the bound socket."""

import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from scaffolds.base import AgentLimits, BlackBox, Endpoint, Fault, Harvests, Launch, TaskView

from orchestrator.bus.feed import in_background
from orchestrator.contracts.errors import AgentTimeout, InfraFailure, PenstockError, PolicyFailure
from orchestrator.contracts.states import FailureClass
from orchestrator.gateway_client import Activity, OpenSession
from orchestrator.runner.clocked_sandbox import ClockedSandbox
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.kept_log import kept_log
from orchestrator.runner.outcome import AttemptOutcome
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts
from sandboxes.base import GATEWAY_SOCKET, WORK, ExecResult, Sandbox

log = get(__name__)

# Of its time limit: a program that reports a time-out after less time of its own is not believed.
IN_TIME = 0.9
REMOVE_S = 10.0
ASK_S = 1.0  # between two queries to the gateway, and the longest wait for an answer
OWN_SHARE = 0.5  # of a gateway's silence: above this share of own requests, the session caused it
_PATH = re.compile(r"/\S+")
# Of a pattern, and the names of the work directory. The start directory of programs is another: an image has it at the same mount as `/app`.
_REMOVE = """IFS=
pattern=$1
shift
for path in $pattern; do
    directory=$(cd -- "${path%/*}/" && pwd -P) || continue
    for work in "$@" .; do
        work=$(cd -- "$work" && pwd -P) || continue
        case $directory/ in "$work"/*) continue 2 ;; esac
    done
    rm -f -- "$path"
done"""
HOST = "http://gateway"  # any name: the socket decides where requests go


def endpoint_of(session: OpenSession, sandbox: Sandbox | None = None) -> Endpoint:
    """The session as seen from inside (`sandbox`: a sandbox whose provider cannot use the usual path)."""
    socket = sandbox.path(GATEWAY_SOCKET) if sandbox is not None else GATEWAY_SOCKET
    return Endpoint(f"{HOST}{session.path}", session.token, socket)


async def run_black(
    scaffold: BlackBox,
    task: TaskView,
    sandbox: Sandbox,
    *,
    session: OpenSession,
    clocks: Clocks,
    limits: AgentLimits,
    activity: Callable[[], Awaitable[Activity]],
    sight: "Sight",
    first: bool = True,
) -> AttemptOutcome:
    """One run of the agent under `clocks`. `activity` queries the gateway about the session, and `sight` stores the observations. The program's files
    are already in place. `first`: it has not run in this sandbox yet; then it is installed.

    Raises the exception that ended it early.
    """
    gateway = endpoint_of(session, sandbox)
    if first and (install := scaffold.install()) is not None:
        installed = await _run(sandbox, install, limits.timeout_s)
        if not installed.ok:
            raise InfraFailure(
                f"the scaffold's install ended with exit code {installed.exit_code}: {kept_log(installed)}"
            )

    if not first and isinstance(scaffold, Harvests):
        await _remove(sandbox, scaffold.harvested(), task.work_dir)
    launch = scaffold.launch(task, gateway, limits)
    try:
        async with in_background(partial(follow, activity, clocks, min(ASK_S, clocks.stall_s / 4), sight)):
            # Without a separate limit: the clocks know how much of its time was the platform's.
            program = partial(_run, ClockedSandbox(sandbox, clocks), launch, math.inf)
            result = await clocks.run(program, limits.timeout_s)
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeouts().abort_s):
            await scaffold.on_abort(sandbox)
        raise
    answer = await scaffold.harvest(sandbox, result)
    fault = scaffold.classify(result, answer)
    if fault is None:
        return AttemptOutcome(
            failure=FailureClass.COMPLETED, answer=answer, log=kept_log(result), reachable=True
        )
    failure = _class(fault)
    if fault.kind == "timeout" and clocks.own_run_s < IN_TIME * limits.timeout_s:
        # It died early, or while it waited for the platform: `judged` attributes the cause as for any other end.
        failure = FailureClass.INFRA_FAILURE
    return AttemptOutcome(
        failure=failure, reason=fault.reason, answer=answer, log=kept_log(result), reachable=True
    )


@dataclass(slots=True, kw_only=True)
class Sight:
    """Observations of the gateway during one program: evidence that nothing in a sandbox can forge or cause. A silence counts once it is over and
    the gateway has reported the share of this session's own requests. Times are `time.monotonic()`."""

    instance: str | None = None
    seen_at: float = field(default_factory=time.monotonic)
    worked_s: float = 0.0  # the gateway's work for the session, at its last answer
    silent: bool = False
    failed_at: float | None = None
    how: str | None = None

    def looked(self, seen: Activity | None) -> None:
        """Record another look; None: no answer in time."""
        now = time.monotonic()
        silence_s = now - self.seen_at
        if seen is None:
            self.silent = self.silent or silence_s > timeouts().gateway_silent_s
            return
        if self.instance is not None and seen.instance != self.instance:
            self.failed_at, self.how = now, "it started again while the program ran"
        elif self.silent and seen.worked_s - self.worked_s < OWN_SHARE * silence_s:
            self.failed_at, self.how = now, "it was silent while the program ran"
        self.instance, self.seen_at, self.worked_s, self.silent = seen.instance, now, seen.worked_s, False

    def failed(self, within_s: float) -> str | None:
        """How the gateway failed in the last `within_s` seconds; None: it did not."""
        recent = self.failed_at is not None and time.monotonic() - self.failed_at < within_s
        return self.how if recent else None


async def witnessed(
    outcome: AttemptOutcome, sight: Sight, activity: Callable[[], Awaitable[Activity]]
) -> AttemptOutcome:
    """The outcome of a program, with the platform's part in it if any. Raises GatewayAway when the gateway is away for good."""
    sight.looked(await activity())
    return replace(outcome, platform=sight.failed(timeouts().gateway_fault_window_s))


async def follow(
    activity: Callable[[], Awaitable[Activity]], clocks: Clocks, period_s: float, sight: Sight
) -> None:
    """Pass the gateway's observations to the clocks, until cancelled. While the gateway is silent, a possible wait for it counts as the
    platform's."""
    while True:
        seen: Activity | None = None
        with anyio.move_on_after(ASK_S):
            try:
                seen = await activity()
            except PenstockError as error:
                log.info("gateway.silent", error=str(error))
        sight.looked(seen)
        clocks.observed(seen)
        await anyio.sleep(period_s)


async def _remove(sandbox: Sandbox, patterns: Sequence[str], work_dir: str) -> None:
    """Remove the files of an earlier step's answer. Files in the work directory are the agent's work: they stay, as do directories."""
    work = [sandbox.path(each) for each in (WORK, work_dir)]
    for pattern in patterns:
        await sandbox.exec(["sh", "-c", _REMOVE, "sh", sandbox.path(pattern), *work], timeout_s=REMOVE_S)


async def _run(sandbox: Sandbox, launch: Launch, timeout_s: float) -> ExecResult:
    argv = [_seen(sandbox, word) for word in launch.argv]
    env = {name: _seen(sandbox, value) for name, value in launch.env.items()}
    return await sandbox.exec(argv, timeout_s=timeout_s, env=env, cwd=launch.cwd, stdin=launch.stdin)


def _seen(sandbox: Sandbox, word: str) -> str:
    """A path, or paths with a colon between them, as the program needs it: its own files may lie elsewhere than in most sandboxes."""
    return ":".join(map(sandbox.path, word.split(":"))) if _PATH.fullmatch(word) else word


def _class(fault: Fault) -> FailureClass:
    match fault.kind:
        case "policy":
            return PolicyFailure.failure
        case "timeout":
            return AgentTimeout.failure
        case "infra":
            return InfraFailure.failure
