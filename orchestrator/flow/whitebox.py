"""Running a white box: its Python here, its tools in the sandbox, its completions at the gateway's native route."""

from scaffolds.base import AgentLimits, Scaffold, TaskView
from scaffolds.context.base import ContextPolicy

from orchestrator.contracts.events import ToolCallTimed
from orchestrator.contracts.states import FailureClass
from orchestrator.flow.clocks import Clocks
from orchestrator.flow.llm import Recorder
from orchestrator.flow.outcome import Outcome
from orchestrator.flow.watched import WatchedBox
from orchestrator.gateway_client import NativeLlm
from sandboxes.base import Sandbox


async def run_white(
    scaffold: Scaffold,
    task: TaskView,
    box: Sandbox,
    native: NativeLlm,
    clocks: Clocks,
    limits: AgentLimits,
    tool_calls: list[ToolCallTimed],
    policy: ContextPolicy | None = None,
) -> Outcome:
    """One episode under `clocks`, each agent's history under `policy`; appends to `tool_calls` as they end. Raises whatever ended it early."""
    recorder = Recorder(native, clocks, limits, tool_calls, policy)
    main = recorder.agent("main")
    watched = WatchedBox(box, clocks)

    async def episode() -> str:
        answer = await scaffold.white().run(task, main.llm, watched, main.ctx)
        if not isinstance(answer, str):
            raise TypeError(f"the scaffold returned {type(answer).__name__}, not the final answer's text")
        return answer

    return Outcome(FailureClass.COMPLETED, answer=await clocks.run(episode))
