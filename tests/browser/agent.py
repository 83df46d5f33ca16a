"""White boxes of the run that the browser visits: one branches and leaves files, one waits for permission to continue, one is broken."""

import math
from pathlib import Path

from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox
from tests.waiting import eventually

LEAVE = "od -An -N8 -tx1 /dev/urandom > draft.txt; echo alike > alike.txt"


@scaffold(name="branching", version="1")
class Branching:
    """Four steps: the first, a sub-agent's, the next, and one whose context was rewritten."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        reply = await llm.complete(messages)
        await sandbox.exec(["sh", "-c", LEAVE], timeout_s=30)
        helper = ctx.spawn("helper")
        await helper.llm.complete(
            [{"role": "user", "content": "Help someone who received this: " + task.instruction}]
        )
        messages += [reply.message(), {"role": "user", "content": "Go on."}]
        await llm.complete(messages)
        shorter = ctx.replace([messages[0], {"role": "user", "content": "In short, then."}], "shortened")
        return (await llm.complete(shorter)).content


@scaffold(name="waiting", version="1")
class Waiting:
    """Two steps; between them it waits for the file that the last word of its instruction names."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        reply = await llm.complete(messages)
        go = Path(task.instruction.split()[-1])
        await eventually(go.exists, within_s=math.inf, every_s=0.05)
        messages += [reply.message(), {"role": "user", "content": "Now go on."}]
        return (await llm.complete(messages)).content


@scaffold(name="broken", version="1")
class Broken:
    """A bug in the scaffold itself."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        raise RuntimeError("this scaffold is broken")
