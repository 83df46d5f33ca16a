"""The smallest white box: one tool, `bash`, and a conversation that only grows.

    user: the instruction                                  (no system prompt)
    assistant: reasoning, bash{"command": …}               reasoning stays in the history
    tool: the command's result, shortened by `seen`
    …
    assistant: reasoning, final answer                     the first message without tool calls

Every command is a separate process in the task's work directory. Files persist, and so do background processes (`server &`).
Variables and the current directory do not.
The commands of one reply run at the same time (`scaffolds.at_once`). Their results are in the history in the order of the reply's
calls.
"""

from functools import partial
from typing import Final

from sandboxes.base import Sandbox
from scaffolds.at_once import at_once
from scaffolds.base import Completion, Context, Llm, Message, PolicyFault, TaskView, Tool
from scaffolds.declare import scaffold
from scaffolds.seen import seen

BASH: Final[Tool] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command with bash in the work directory and see what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}


@scaffold(name="shell", version="1")
class Shell:
    """See the module."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for _ in range(ctx.limits.turns):
            reply = await llm.complete(messages, [BASH])
            commands = commands_of(reply)
            if not commands:
                return reply.content
            messages.append(reply.message())
            run = partial(result_of, sandbox, ctx, reply)
            observations = await at_once([partial(run, i, command) for i, command in enumerate(commands)])
            for call, content in zip(reply.tool_calls, observations, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        raise PolicyFault("turns")


async def result_of(sandbox: Sandbox, ctx: Context, reply: Completion, call: int, command: str) -> str:
    """Run the command of one call of `reply`; returns the policy's view of it."""
    with ctx.tool_call(reply, call, "bash") as timer:
        result = await sandbox.exec(["bash", "-c", command], timeout_s=ctx.limits.tool_timeout_s)
        timer.ended(result.exit_code, len(result.stdout) + len(result.stderr))
    return seen(result, ctx.limits)


def commands_of(reply: Completion) -> list[str]:
    """The commands that a reply requests; none: it is the final answer. PolicyFault for calls that cannot be run."""
    if reply.parse != "ok":
        raise PolicyFault("ill_formed: the output cannot be parsed")
    if reply.finish == "length":
        raise PolicyFault("length: the output was cut off")
    commands = []
    for call in reply.tool_calls:
        command = call.arguments.get("command")
        if call.name != "bash" or not isinstance(command, str):
            raise PolicyFault("ill_formed: not a call of bash with a command")
        commands.append(command)
    return commands
