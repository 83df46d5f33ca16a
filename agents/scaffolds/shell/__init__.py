"""The smallest white box: one tool, `bash`, and a conversation that only ever grows.

    user: the instruction                                  (no system prompt)
    assistant: reasoning, bash{"command": …}               reasoning stays in the history
    tool: what `observe` makes of the command's result
    …
    assistant: reasoning, final answer                     the first message without tool calls

Every command is a process of its own in the task's work directory; only files carry over.
"""

from typing import Final

from sandboxes.base import Sandbox
from scaffolds.base import Completion, Context, Llm, Message, PolicyFault, TaskView, Tool
from scaffolds.declare import scaffold
from scaffolds.observation import observe

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

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        messages: list[Message] = [{"role": "user", "content": task.instruction}]
        for _ in range(ctx.limits.turns):
            reply = await llm.complete(messages, [BASH])
            commands = commands_of(reply)
            if not commands:
                return reply.content
            messages.append(reply.message())
            for i, command in enumerate(commands):
                with ctx.tool_call(reply, i, "bash") as timer:
                    ended = await box.exec(["bash", "-c", command], timeout_s=ctx.limits.tool_timeout_s)
                    timer.ended(ended.exit_code, len(ended.stdout) + len(ended.stderr))
                seen = observe(ended.stdout, ended.stderr, ended.exit_code)
                messages.append({"role": "tool", "tool_call_id": reply.tool_calls[i].id, "content": seen})
        raise PolicyFault("turns")


def commands_of(reply: Completion) -> list[str]:
    """The commands that a reply asks for; none: it is the final answer. PolicyFault for what cannot be run."""
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
