"""The work of reading a request grows with its length, not with the square of it: other rollouts wait for it."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.gateway.http.dialects.base import Dialect, Known
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, RESPONSES

pytestmark = pytest.mark.tier("gateway")

Body = dict[str, Any]
ASK: Body = {"role": "user", "content": "go"}
LONG, SHORT = 3000, 750


def chat(ids: list[str | None], *results: Body, **more: Any) -> Body:
    calls = [{"id": one, "function": {"name": f"f{i}"}} for i, one in enumerate(ids)]
    return {"messages": [ASK, {"role": "assistant", "tool_calls": calls}, *results], **more}


def result(identifier: str | None, **more: Any) -> Body:
    return {"role": "tool", "tool_call_id": identifier, "content": "1", **more}


def called(identifier: str, **more: Any) -> Body:
    return {"type": "function_call", "call_id": identifier, "name": "f", **more}


def output(identifier: str, kind: str = "function_call_output") -> Body:
    return {"type": kind, "call_id": identifier, "output": "1"}


def function(name: str) -> Body:
    return {"type": "function", "name": name, "parameters": {"type": "object"}}


def tool(name: str, **more: Any) -> Body:
    return {"name": name, "input_schema": {"type": "object"}, **more}


def added(*tools: Body) -> Body:
    blocks = [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": one}} for one in tools
    ]
    return {"role": "user", "content": [{"type": "text", "text": "go"}, *blocks]}


def of_names(n: int) -> list[str]:
    return [f"f{i}" for i in range(n)]


CHATS: dict[str, Callable[[int], Body]] = {
    "results in another order": lambda n: chat(
        [*of_names(n)], *[result(one) for one in reversed(of_names(n))]
    ),
    "calls of one id": lambda n: chat(["a"] * n, *[result("a")] * n),
    "results without ids": lambda n: chat([None] * n, *[result(None)] * n),
    "results by name": lambda n: chat([None] * n, *[result(None, name=one) for one in of_names(n)]),
}
ITEMS: dict[str, Callable[[int], Body]] = {
    "calls of a step after others": lambda n: {
        "input": [called("a")] * n + [called("call_s5_0")] * n + [ASK]
    },
    "each call of a step with its result": lambda n: {
        "input": [ASK, *[item for i in range(n) for item in (called(f"call_s5_{i}"), output(f"call_s5_{i}"))]]
    },
    "outputs of unknown types": lambda n: {
        "input": [ASK, *[called(one) for one in of_names(n)], *[output("z", "odd_output")] * n]
    },
    "calls of declared tools": lambda n: {
        "input": [*[called("a", name=one) for one in of_names(n)], ASK],
        "tools": [function(one) for one in of_names(n)],
    },
    "calls of many namespaces": lambda n: {
        "input": [*[called("a", name="f")] * n, ASK],
        "tools": [{"type": "namespace", "name": one, "tools": [function("f")]} for one in of_names(n)],
    },
    "tools in the middle": lambda n: {
        "input": [ASK, *[{"type": "additional_tools", "tools": [function(one)]} for one in of_names(n)]]
    },
    "a choice of declared tools": lambda n: {
        "input": "go",
        "tools": [function(one) for one in of_names(n)],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [function(one) for one in of_names(n)],
        },
    },
}
MESSAGES: dict[str, Callable[[int], Body]] = {
    "tools that are added": lambda n: {"messages": [added(*[tool(one) for one in of_names(n)])]},
    "one tool that is added often": lambda n: {
        "messages": [added(*[tool("f")] * n)],
        "tools": [tool("f")] * n,
    },
    "a tool that is refused often": lambda n: {
        "messages": [{"role": "assistant", "content": "1"}, added(*[tool("f")] * n)],
        "tools": [tool("g")] * n + [tool("f")] * n,
    },
    "pseudo-headers": lambda n: {"messages": [ASK], "system": "x-anthropic-a: 1\n" * 10 * n},
}
MADE: Mapping[str, tuple[Dialect, Callable[[int], Body]]] = {
    **{name: (CHAT.dialect, made) for name, made in CHATS.items()},
    **{name: (RESPONSES.dialect, made) for name, made in ITEMS.items()},
    **{name: (ANTHROPIC.dialect, made) for name, made in MESSAGES.items()},
}


@pytest.mark.parametrize("name", MADE)
def test_the_work_of_a_request_grows_with_its_length(name: str) -> None:
    """CPU time of a request, compared with that of one of a quarter of its length."""
    dialect, made = MADE[name]

    def measured(n: int) -> float:
        body = {"max_tokens": 9, **made(n)} if dialect is ANTHROPIC.dialect else made(n)
        gc.collect()
        started = time.process_time()
        dialect.read(body, {}, Known(past=True))
        return time.process_time() - started

    draws = [(measured(LONG), measured(SHORT)) for _ in range(3)]
    assert sum(long < 0.15 or long < 9 * short for long, short in draws) >= 2, draws
