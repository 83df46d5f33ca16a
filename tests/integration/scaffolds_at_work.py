"""Scaffolds that exist for the tests."""

from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox


@scaffold(name="broken", version="1")
class Broken:
    """Fails in a way that nobody foresaw."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        return str(1 / 0)


@scaffold(name="forgetful", version="1")
class Forgetful:
    """Starts its history anew after the first completion, then asks a sub-agent."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for number in range(2):
            messages = [
                *messages,
                (await llm.complete(messages)).message(),
                {"role": "user", "content": f"go on {number}"},
            ]
        messages = ctx.replace([messages[0], messages[-1]], "window")
        answer = await llm.complete(messages)
        helper = ctx.spawn("helper")
        await helper.llm.complete([{"role": "user", "content": "a side question"}])
        return answer.content
