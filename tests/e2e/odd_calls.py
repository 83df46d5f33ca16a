"""A scaffold next to the runner that puts drawn texts into everything that it can name. The instruction is `PART SEED`."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

from scaffolds.base import Context, Llm, Message, PolicyFault, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox
from tests.e2e.odd_program.texts import texts

USER: Message = {"role": "user", "content": "Say 1."}
LONGEST_SENTENCE = 2_000


@scaffold(name="odd-calls", version="1")
class OddCalls:
    """`calls`: one call for each text in each place; the answer is JSON, the numbers of ends by kind, and the unclear ones. `answer`, `fault` and
    `error` end with a drawn text."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        part, seed = task.instruction.split()
        dice = random.Random(seed)
        if part == "calls":
            return await calls(dice, llm, sandbox, ctx)
        drawn = dice.choice([*texts(dice)])
        if part == "fault":
            raise PolicyFault(drawn)
        if part == "error":
            raise RuntimeError(drawn)
        return drawn


async def calls(dice: random.Random, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
    ends, unclear = Counter[str](), list[str]()
    for text in texts(dice):
        async for act in acts(text, llm, sandbox, ctx):
            try:
                await act
            except Exception as error:  # noqa: BLE001 (the test reads them)
                name, sentence = type(error).__name__, str(error)
                ends[name] += 1
                long = name in ("GatewayRefused", "ValueError") and len(sentence) > LONGEST_SENTENCE
                if name == "GatewayFailed" or long or not sentence:
                    unclear.append(f"{name}: {sentence[:500]!r}")
            else:
                ends["done"] += 1
        await llm.complete([USER])
    return json.dumps({"answers": ends, "unclear": unclear})


async def acts(text: str, llm: Llm, sandbox: Sandbox, ctx: Context) -> AsyncIterator[Awaitable[Any]]:
    function = {"name": text, "description": text, "parameters": {"type": "object", "properties": {text: {}}}}
    ask = llm.complete
    yield ask([{"role": "user", "content": text}])
    yield ask([{"role": text, "content": "Say 1."}])
    yield ask([{**USER, "name": text}])
    yield ask([USER], [{"type": "function", "function": function}])
    yield ask([USER], stop=[text])
    yield ask(ctx.replace([USER], text))
    yield spawned(ctx, text)
    yield timed(llm, ctx, text)
    for argv in ([text], ["echo", text], ["sh", "-c", f": {text}"]):
        yield sandbox.exec(argv, timeout_s=20)
    yield sandbox.exec(["true"], env={text: text})
    yield sandbox.exec(["true"], cwd=text)
    yield partial(sandbox.exec, ["cat"], stdin=text.encode(errors="surrogatepass"))()


async def spawned(ctx: Context, name: str) -> None:
    await ctx.spawn(name).llm.complete([USER])


async def timed(llm: Llm, ctx: Context, name: str) -> None:
    with ctx.tool_call(await llm.complete([USER]), 0, name) as timer:
        timer.ended(0, 0)
