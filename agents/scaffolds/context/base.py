"""The input and the output of a context policy, before each completion.

A policy is a dataclass or a pydantic model, registered as an entry point of the group `penstock.context_policies`. Its fields are the keys of
its table in the configuration. Pydantic checks their types, and a ValueError of `__post_init__` is shown with the table's name.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scaffolds.base import Completion, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """An agent's history before a completion, `[*head, *rest]`: the state that is sent unless the policy shortens it.

    `head` is the task: everything before the first reply. No policy changes it. `context`: tokens that a state and its action may have.
    `length` counts the tokens of a history as the gateway would send it, tools included. Above `context` it may return any larger number.
    `ask` requests a completion of another history: a recorded step of this agent, trained like any other, and one turn of its budget.
    """

    head: Sequence[Message]
    rest: Sequence[Message]
    context: int
    length: Callable[[Sequence[Message]], Awaitable[int]]
    ask: Callable[[Sequence[Message]], Awaitable[Completion]]


class ContextPolicy(Protocol):
    """Decides about one agent's history. `name` is recorded with its rewrites.

    One object serves all agents of an attempt, so it keeps no state between calls. The same past must give the same answer: a resumed attempt
    calls it again.
    """

    @property
    def name(self) -> str:
        """The name that is recorded with its rewrites."""
        ...

    async def fit(self, past: Past) -> list[Message] | None:
        """The replacement of `past.rest` from now on; None: no change. Raises PolicyFault if the policy failed at it.

        A tool result stays only with the reply that called the tool: `turns_of` and `newest` keep whole turns.
        """
        ...


def turns_of(rest: Sequence[Message]) -> list[list[Message]]:
    """`rest` by turns: a reply and the messages that answer it. Messages before the first reply belong to no turn and are left out.

    >>> turns_of([{"role": "user"}, {"role": "assistant"}, {"role": "tool"}, {"role": "assistant"}])
    [[{'role': 'assistant'}, {'role': 'tool'}], [{'role': 'assistant'}]]
    """
    turns: list[list[Message]] = []
    for message in rest:
        if message.get("role") == "assistant":
            turns.append([message])
        elif turns:
            turns[-1].append(message)
    return turns


def newest(turns: Sequence[Sequence[Message]], count: int) -> list[Message]:
    """The messages of the last `count` turns."""
    return [message for turn in turns[max(0, len(turns) - count) :] for message in turn]


def orphans(messages: Sequence[Message]) -> list[int]:
    """The positions of tool results without the reply that called the tool, which chat templates refuse.

    >>> call = {"role": "assistant", "tool_calls": [{"id": "a"}]}
    >>> orphans([{"role": "tool"}, call, {"role": "tool", "tool_call_id": "a"}, {"role": "tool", "tool_call_id": "b"}])
    [0, 3]
    """
    found, has_reply, known = [], False, set[object]()
    for i, message in enumerate(messages):
        if message.get("role") == "assistant":
            has_reply = True
            known.update(call.get("id") for call in message.get("tool_calls") or [])
        elif message.get("role") == "tool":
            identifier = message.get("tool_call_id")
            if not has_reply or (identifier is not None and identifier not in known):
                found.append(i)
    return found


def check_turns(most: int, keep: int) -> None:
    """Raise ValueError if a history that is cut at `most` turns would not become shorter."""
    if keep >= most:
        raise ValueError(f"keep_turns ({keep}) must be less than max_turns ({most})")
