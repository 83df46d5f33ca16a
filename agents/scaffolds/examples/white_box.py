"""A white box: Python next to the runner. Completions go through `llm`, commands through `sandbox`; both are recorded, timed and limited."""

from functools import partial

from sandboxes.base import Sandbox
from scaffolds.at_once import at_once
from scaffolds.base import Completion, Context, Llm, Message, PolicyFault, TaskView, Tool
from scaffolds.declare import scaffold
from scaffolds.seen import seen

BASH: Tool = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the work directory and see what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


@scaffold(name="example-agent", version="1")
class Agent:
    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for _ in range(ctx.limits.turns):
            reply = await llm.complete(messages, [BASH])
            if reply.parse != "ok":
                raise PolicyFault("ill_formed")
            if not reply.tool_calls:
                return reply.content
            messages.append(reply.message())
            calls = range(len(reply.tool_calls))
            observations = await at_once(
                [partial(self.run_call, sandbox, ctx, reply, number) for number in calls]
            )
            for call, content in zip(reply.tool_calls, observations, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        raise PolicyFault("turns")

    async def run_call(self, sandbox: Sandbox, ctx: Context, reply: Completion, number: int) -> str:
        """The policy's view of one tool call. The calls of a reply run at the same time."""
        call = reply.tool_calls[number]
        with ctx.tool_call(reply, number, call.name) as timer:
            command = str(call.arguments.get("command", ""))
            result = await sandbox.exec(["bash", "-c", command], timeout_s=ctx.limits.tool_timeout_s)
            timer.ended(result.exit_code, len(result.stdout))
        return seen(result, ctx.limits)
