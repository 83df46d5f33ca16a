"""A scaffold whose attempts last until a test ends them: it calls the policy, works a little in its sandbox, and calls again."""

from pathlib import Path

from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox

GO = Path(__file__).with_name("go")  # the file that ends every attempt
TURNS = 4  # of one history; then it restarts, so that a context never runs out


@scaffold(name="patient", version="1")
class Patient:
    """Turns without an end."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        opening: list[Message] = [{"role": "user", "content": task.instruction}]
        messages, turns = list(opening), 0
        while True:
            reply = await llm.complete(messages)
            turns += 1
            if GO.exists():
                return reply.content
            worked = await sandbox.exec(["sleep", "0.1"], timeout_s=30)
            assert worked.ok
            if turns % TURNS:
                messages += [reply.message(), {"role": "user", "content": "Go on."}]
            else:
                messages = ctx.replace(opening, "the test wants a short history")
