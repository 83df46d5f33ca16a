"""Running a black box: a program inside the sandbox that reaches the gateway through the bound socket, and nothing else."""

from functools import partial

import anyio
from scaffolds.base import AgentLimits, BlackBox, Endpoint, Fault, Launch, TaskView

from orchestrator.contracts.errors import AgentTimeout, InfraFailure, PolicyFailure
from orchestrator.contracts.states import FailureClass
from orchestrator.flow.clocks import Clocks
from orchestrator.flow.outcome import LOG_BYTES, Outcome
from orchestrator.gateway_client import OpenSession
from orchestrator.log import get
from sandboxes.base import GATEWAY_SOCKET, ExecResult, Sandbox

log = get(__name__)

ABORT_S = 5.0
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
) -> Outcome:
    """One episode under `clocks`. The program's files are placed already. Raises whatever ended it early."""
    gateway = endpoint_of(session, box)
    if (install := scaffold.install()) is not None:
        installed = await _start(box, install, limits.timeout_s)
        if not installed.ok:
            raise InfraFailure(
                f"the scaffold's install ended with exit code {installed.exit_code}: {_tail(installed)}"
            )

    launch = scaffold.launch(task, gateway, limits)
    try:
        ended = await clocks.run(partial(_watched, box, launch, clocks, limits))
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(ABORT_S):
            await scaffold.on_abort(box)
        raise
    answer = await scaffold.harvest(box, ended)
    fault = scaffold.classify(ended, answer)
    if fault is None:
        return Outcome(FailureClass.COMPLETED, answer=answer, log=_tail(ended))
    return Outcome(_class(fault), fault.reason, answer, _tail(ended))


async def _start(box: Sandbox, launch: Launch, timeout_s: float) -> ExecResult:
    return await box.exec(
        launch.argv, timeout_s=timeout_s, env=launch.env, cwd=launch.cwd, stdin=launch.stdin
    )


async def _watched(box: Sandbox, launch: Launch, clocks: Clocks, limits: AgentLimits) -> ExecResult:
    # A little later than our own clock, which says what ended it.
    process = await box.start(
        launch.argv, timeout_s=limits.timeout_s + 5, env=launch.env, cwd=launch.cwd, stdin=launch.stdin
    )
    with clocks.program(process):
        try:
            return await process.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await process.kill()
            raise


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
