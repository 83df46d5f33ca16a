"""White boxes for the failpoints: one uses up its turns and requests one more, one never waits for an answer, one is broken."""

import secrets

import anyio
from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox


@scaffold(name="asking", version="1")
class Asking:
    """Requests another turn after any reply, and after its last turn too: the gateway remembers that its budget is used up. Every fourth attempt
    leaves a large file, which is new."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        if secrets.randbelow(4) == 0:
            await sandbox.exec(["sh", "-c", "head -c 600000 /dev/urandom > large"])
        for _ in range(ctx.limits.turns + 1):
            reply = await llm.complete(messages)
            messages += [reply.message(), {"role": "user", "content": "And now?"}]
        return "done"


@scaffold(name="broken", version="1")
class Broken:
    """A bug in the scaffold itself."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        raise RuntimeError("this scaffold is broken")


@scaffold(name="hasty", version="1")
class Hasty:
    """Leaves before its completion is whole."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        for milliseconds in (20, 40, 80):
            with anyio.move_on_after(milliseconds / 1000):
                await llm.complete(
                    [{"role": "user", "content": f"{task.instruction} Within {milliseconds} ms."}]
                )
        return "done"
