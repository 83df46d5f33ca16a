"""Two agents that show whether a task's tests can be trusted: the reference solution earns the full reward, no work earns nothing.

They make no completion, so they need no policy. Only evaluations run them: their rollouts are never trained or recorded.
"""

from typing import Final

from sandboxes.base import KilledBy, Sandbox
from scaffolds.base import Context, Llm, PolicyFault, TaskView
from scaffolds.declare import scaffold

CONTROLS: Final = frozenset({"oracle", "nop"})
"""The registered names of the scaffolds here."""
TAIL_BYTES: Final = 300


@scaffold(name="oracle", version="1", solution=True, trains=False)
class Oracle:
    """Runs the task's `solution/solve.sh` as the agent. Its standard output is the final message."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        """Raises PolicyFault if the solution fails; the tests grade its files anyway."""
        solution = task.solution
        assert solution is not None, "the manifest asks for it"
        await sandbox.put(solution.files, links=solution.links, modes=solution.modes)
        argv = [*solution.argv[:-1], sandbox.path(solution.argv[-1])]
        ended = await sandbox.exec(argv, timeout_s=ctx.limits.timeout_s, env=solution.env)
        if ended.killed_by is not KilledBy.NONE:
            raise PolicyFault(f"solution/solve.sh was ended: {ended.killed_by.value}")
        if not ended.ok:
            tail = ended.stderr[-TAIL_BYTES:].decode(errors="replace").strip()
            raise PolicyFault(f"solution/solve.sh ended with exit code {ended.exit_code}: {tail}")
        return ended.stdout.decode(errors="replace")


@scaffold(name="nop", version="1", trains=False)
class Nop:
    """Does nothing and ends at once, with an empty final message."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        return ""
