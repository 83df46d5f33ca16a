"""A white box: Python beside the runner. Completions go through `llm`, commands through `box`; both are recorded, timed and limited."""

from sandboxes.base import Sandbox
from scaffolds.base import Context, Llm, Message, PolicyFault, TaskView, Tool
from scaffolds.declare import scaffold

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
    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for _ in range(ctx.limits.turns):
            reply = await llm.complete(messages, [BASH])
            if reply.parse != "ok":
                raise PolicyFault("ill_formed")
            if not reply.tool_calls:
                return reply.content
            messages.append(reply.message())
            for number, call in enumerate(reply.tool_calls):
                with ctx.tool_call(reply, number, call.name) as timer:
                    command = str(call.arguments.get("command", ""))
                    ended = await box.exec(["bash", "-c", command], timeout_s=ctx.limits.tool_timeout_s)
                    timer.ended(ended.exit_code, len(ended.stdout))
                seen = (ended.stdout + ended.stderr).decode(errors="replace") or f"exit {ended.exit_code}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
        raise PolicyFault("turns")
