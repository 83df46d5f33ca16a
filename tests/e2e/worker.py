"""A scaffold with one command in its sandbox between two completions: it waits until the test releases or kills it."""

from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox

WAITS = "touch /tmp/waits; until [ -e /tmp/go ]; do sleep 0.05; done"


@scaffold(name="worker", version="1")
class Worker:
    """Two turns."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        reply = await llm.complete(messages)
        await sandbox.exec(["sh", "-c", WAITS], timeout_s=300)
        again: list[Message] = [*messages, reply.message(), {"role": "user", "content": "Go on."}]
        return (await llm.complete(again)).content
