"""Scaffolds that exist for the tests."""

import anyio
from scaffolds.base import Agent, Context, Llm, Message, TaskView
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


async def go_on(agent: Agent, instruction: str, turns: int) -> None:
    """A conversation of one agent that only grows."""
    messages: list[Message] = [{"role": "user", "content": instruction}]
    for _ in range(turns):
        reply = await agent.llm.complete(messages)
        messages += [reply.message(), {"role": "user", "content": instruction}]


@scaffold(name="team", version="1")
class Team:
    """Two scouts at the same time, one of them with an agent of its own."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        await go_on(Agent(llm, ctx), task.instruction, 1)
        one, two = ctx.spawn("scout"), ctx.spawn("scout")
        async with anyio.create_task_group() as tasks:
            for agent, turns in ((one, 3), (two, 3), (one.ctx.spawn("deep"), 2)):
                tasks.start_soon(go_on, agent, task.instruction, turns)
        return "done"


@scaffold(name="spender", version="1")
class Spender:
    """One agent after the other, without an end."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        await go_on(Agent(llm, ctx), task.instruction, 1)
        while True:
            await go_on(ctx.spawn("helper"), task.instruction, 2)
