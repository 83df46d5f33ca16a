"""Running a white box: its Python runs here, its tools in the sandbox, its completions through the gateway's native route."""

from scaffolds.base import AgentLimits, Scaffold, TaskView
from scaffolds.context.base import ContextPolicy

from orchestrator.contracts.events import ToolCallTimed
from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.contracts.states import FailureClass
from orchestrator.gateway_client import NativeLlm
from orchestrator.runner.clocked_sandbox import ClockedSandbox
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.llm import Recorder
from orchestrator.runner.outcome import AttemptOutcome
from orchestrator.trajectory.waiting import Served
from sandboxes.base import Sandbox


async def run_white(
    scaffold: Scaffold,
    task: TaskView,
    sandbox: Sandbox,
    *,
    native: NativeLlm,
    clocks: Clocks,
    limits: AgentLimits,
    tool_calls: list[ToolCallTimed],
    context_policy: ContextPolicy | None = None,
    served: Served | None = None,
) -> AttemptOutcome:
    """One run of the agent under `clocks`, each agent's history under `context_policy`. Appends tool calls to `tool_calls` as they end. `served`: the
    completions that a resume served again in earlier steps. Raises the exception that ended it early."""
    recorder = Recorder(
        native=native,
        clocks=clocks,
        limits=limits,
        tool_calls=tool_calls,
        context_policy=context_policy,
        served=served or Served(),
    )
    main = recorder.agent(MAIN_AGENT)
    watched = ClockedSandbox(sandbox, clocks)

    async def answer_of() -> str:
        answer = await scaffold.white().run(task, main.llm, watched, main.ctx)
        if not isinstance(answer, str):
            raise TypeError(f"the scaffold returned {type(answer).__name__}, not the final answer's text")
        return answer

    return AttemptOutcome(
        failure=FailureClass.COMPLETED, answer=await clocks.run(answer_of, limits.timeout_s)
    )
