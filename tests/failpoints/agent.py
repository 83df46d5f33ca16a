"""White boxes for the failpoints: one that uses its turns up and asks once more, one that never waits for an answer, one that is broken."""

import anyio
from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox


@scaffold(name="asking", version="1")
class Asking:
    """Whatever the policy says, it asks again, and after its last turn too: the gateway remembers that its budget is used up."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for _ in range(ctx.limits.turns + 1):
            reply = await llm.complete(messages)
            messages += [reply.message(), {"role": "user", "content": "And now?"}]
        return "done"


@scaffold(name="broken", version="1")
class Broken:
    """A fault of whoever wrote it."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        raise RuntimeError("this scaffold is broken")


@scaffold(name="hasty", version="1")
class Hasty:
    """Leaves before its completion is whole."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        for milliseconds in (20, 40, 80):
            with anyio.move_on_after(milliseconds / 1000):
                await llm.complete(
                    [{"role": "user", "content": f"{task.instruction} Within {milliseconds} ms."}]
                )
        return "done"
