"""A scaffold with one command in its sandbox between two completions: long enough to be killed in."""

from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox


@scaffold(name="worker", version="1")
class Worker:
    """Two turns."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        reply = await llm.complete(messages)
        await sandbox.exec(["sleep", "1.5"], timeout_s=30)
        again: list[Message] = [*messages, reply.message(), {"role": "user", "content": "Go on."}]
        return (await llm.complete(again)).content
