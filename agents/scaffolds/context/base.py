"""What a context policy is given before each completion, and what it answers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scaffolds.base import Completion, Message


@dataclass(frozen=True, slots=True)
class Past:
    """An agent's history before a completion, `[*head, *rest]`.

    `head` is the task: everything before the first reply; no policy touches it. `used` is the length in tokens of the agent's last
    state + action (0 before the first), of `context` that there are at most. `ask` makes a completion of another history: a recorded
    step of this agent, trained as any other, and one turn of its budget.
    """

    head: Sequence[Message]
    rest: Sequence[Message]
    used: int
    context: int
    ask: Callable[[Sequence[Message]], Awaitable[Completion]]


class ContextPolicy(Protocol):
    """Decides about one agent's history. `name` is what its rewrites are recorded with."""

    @property
    def name(self) -> str: ...

    async def fit(self, past: Past) -> list[Message] | None:
        """What stands for `past.rest` from now on; None: nothing changes. Raises PolicyFault where the policy failed at it."""
        ...


def turns_of(rest: Sequence[Message]) -> list[list[Message]]:
    """`rest` by turns: a reply and what came back for it. What stands before the first reply belongs to no turn and is left out.

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
