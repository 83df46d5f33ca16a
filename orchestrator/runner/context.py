"""Context management of one agent: the history of a white box, and the shortened history that its completions use.

The scaffold appends to its history without knowing of the policy. Once a policy has rewritten it, the rewritten messages replace the part that
the scaffold had then; later messages follow them. A history that does not continue the last one starts over.
"""

from collections.abc import Awaitable, Callable, Sequence

import anyio
from scaffolds.base import Completion, Message
from scaffolds.context.base import ContextPolicy, Past, orphans

from orchestrator.contracts.quote import quoted

Ask = Callable[[Sequence[Message]], Awaitable[Completion]]
Length = Callable[[Sequence[Message]], Awaitable[int]]


class ManagedHistory:
    """One agent's history under a policy. `context`: token limit of a state and its action."""

    def __init__(self, policy: ContextPolicy, context: int) -> None:
        self._policy = policy
        self._context = context
        self._lock = anyio.Lock()  # a policy may request a completion in between
        self._begin()

    def _begin(self) -> None:
        self._kept: list[Message] = []  # the scaffold's history at the last completion
        self._head: list[Message] = []
        self._rest: list[Message] = []  # replacement of the first `_replaced` messages, without the head
        self._replaced = 0

    async def fit(
        self, messages: Sequence[Message], ask: Ask, length: Length
    ) -> tuple[list[Message], str | None]:
        """(the messages to complete, the policy's name if it has just rewritten them, or None). Raises the exceptions of the policy, `ask` and
        `length`, and ValueError for a policy that keeps a tool result without its call."""
        async with self._lock:
            if list(messages[: len(self._kept)]) != self._kept:
                self._begin()
            self._kept = list(messages)
            if not self._replaced:
                self._head = list(_before_reply(messages))
            rest = [*self._rest, *messages[self._replaced or len(self._head) :]]
            if self._replaced:  # a late result's call may have been removed
                late = orphans(rest)
                rest = [message for i, message in enumerate(rest) if i not in late]
            past = Past(head=self._head, rest=rest, context=self._context, length=length, ask=ask)
            shorter = await self._policy.fit(past)
            if shorter is None:
                return [*self._head, *rest], None
            if orphans(shorter) and not orphans(rest):
                raise ValueError(
                    f"context policy {quoted(self._policy.name)} keeps a tool result without the reply that called the tool: keep whole turns"
                )
            self._rest, self._replaced = shorter, len(messages)
            return [*self._head, *shorter], self._policy.name


def _before_reply(messages: Sequence[Message]) -> Sequence[Message]:
    replies = (i for i, message in enumerate(messages) if message.get("role") == "assistant")
    return messages[: next(replies, len(messages))]
