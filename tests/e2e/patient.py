"""A scaffold whose attempts last until a test says so: it asks the policy, works a little in its sandbox, and asks again."""

from pathlib import Path

import anyio
from scaffolds.base import Context, Llm, Message, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox

GO = Path(__file__).with_name("go")  # the file that ends every attempt
TURNS = 4  # of one history; then it begins anew, so that a context never runs out


@scaffold(name="patient", version="1")
class Patient:
    """Turns without an end."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        begun: list[Message] = [{"role": "user", "content": task.instruction}]
        messages, turns = list(begun), 0
        while True:
            reply = await llm.complete(messages)
            turns += 1
            if GO.exists():
                return reply.content
            worked = await box.exec(["true"], timeout_s=30)
            assert worked.ok
            await anyio.sleep(0.1)
            if turns % TURNS:
                messages += [reply.message(), {"role": "user", "content": "Go on."}]
            else:
                messages = ctx.replace(begun, "the test wants a short history")
