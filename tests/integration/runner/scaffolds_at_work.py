"""Scaffolds that exist for the tests."""

import os
from functools import partial

import anyio
from scaffolds.base import Agent, Completion, Context, Llm, Message, TaskView
from scaffolds.declare import scaffold
from scaffolds.shell import Shell

from sandboxes.base import Sandbox


@scaffold(name="broken", version="1")
class Broken:
    """Fails with an unforeseen error."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        return str(1 / 0)


@scaffold(name="forgetful", version="1")
class Forgetful:
    """Restarts its history after the first completion, then calls a sub-agent."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
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

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        await go_on(Agent(llm, ctx), task.instruction, 1)
        one, two = ctx.spawn("scout"), ctx.spawn("scout")
        async with anyio.create_task_group() as tasks:
            for agent, turns in ((one, 3), (two, 3), (one.ctx.spawn("deep"), 2)):
                tasks.start_soon(go_on, agent, task.instruction, turns)
        return "done"


@scaffold(name="crowd", version="1")
class Crowd:
    """Requests one completion, runs a command, requests six at once, runs another, requests one more."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        opening: list[Message] = [{"role": "user", "content": task.instruction}]

        async def command(reply: Completion, call: int, seconds: float) -> None:
            with ctx.tool_call(reply, call, "bash") as timer:
                ended = await sandbox.exec(["sleep", str(seconds)])
                timer.ended(ended.exit_code, 0)

        first = await llm.complete(opening, max_tokens=12)
        await command(first, 0, 0.5)
        scouts = [ctx.spawn("scout") for _ in range(6)]
        async with anyio.create_task_group() as tasks:
            for number, scout in enumerate(scouts):
                prompt: list[Message] = [{"role": "user", "content": f"oak {number}"}]
                tasks.start_soon(partial(scout.llm.complete, prompt, max_tokens=120))
        await command(first, 1, 3.0)
        await llm.complete([*opening, first.message(), {"role": "user", "content": "go on"}], max_tokens=12)
        return "done"


@scaffold(name="spender", version="1")
class Spender:
    """One agent after the other, without an end."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        await go_on(Agent(llm, ctx), task.instruction, 1)
        while True:
            await go_on(ctx.spawn("helper"), task.instruction, 2)


async def turns(agent: Agent, sandbox: Sandbox, instruction: str, number: int, log: str = "log") -> None:
    """So many turns of an agent that gets the output of its commands, from a file that they wrote before."""
    messages: list[Message] = [{"role": "user", "content": instruction}]
    for turn in range(number):
        reply = await agent.llm.complete(messages, max_tokens=12)
        ended = await sandbox.exec(["bash", "-c", f"echo {turn} >> {log}; cat {log}"])
        messages += [reply.message(), {"role": "user", "content": ended.stdout.decode()}]


@scaffold(name="steady", version="1")
class Steady:
    """Ten turns, the same in every run."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        await turns(Agent(llm, ctx), sandbox, task.instruction, 10)
        return "done"


@scaffold(name="crew", version="1")
class Crew:
    """Three agents at the same time."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        async with anyio.create_task_group() as tasks:
            for name, number in (("one", 5), ("two", 3), ("three", 2)):
                tasks.start_soon(turns, ctx.spawn(name), sandbox, task.instruction, number, name)
        return "done"


@scaffold(name="fickle", version="1")
class Fickle:
    """Its fourth turn contains the id of its process."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for turn in range(10):
            reply = await llm.complete(messages, max_tokens=12)
            content = f"I am {os.getpid()}" if turn == 3 else "go on"
            messages += [reply.message(), {"role": "user", "content": content}]
        return "done"


@scaffold(name="hasty", version="1", replayable=False)
class Hasty(Steady):
    """Declares that it cannot be replayed."""


@scaffold(name="sleeper", version="1")
class Sleeper(Shell):
    """Waits before its first request."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        await sandbox.exec(["sleep", "2"])
        return await super().run(task, llm, sandbox, ctx)


@scaffold(name="bounded", version="1")
class Bounded:
    """Answers with the limits that it works within."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        await llm.complete([{"role": "user", "content": task.instruction}])
        limits = ctx.limits
        return f"{limits.turns} {limits.context} {limits.tool_timeout_s:g} {limits.timeout_s:g}"
