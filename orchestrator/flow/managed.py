"""Context management of one agent: the history that a white box keeps, and the one that its completions are asked with.

The scaffold appends to its history as if nothing happened; once a policy has rewritten it, the rewritten messages stand for the part that
the scaffold had then, and what it appends later follows them. A history that does not go on from the last one begins anew.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
from scaffolds.base import Completion, Message
from scaffolds.context.base import ContextPolicy, Past
from scaffolds.context.drop_replies import DropReplies
from scaffolds.context.periodic_summary import PeriodicSummary
from scaffolds.context.sliding_window import SlidingWindow

from orchestrator.config import (
    ContextSection,
    DropRepliesContext,
    NoContext,
    PeriodicSummaryContext,
    SlidingWindowContext,
)

Ask = Callable[[Sequence[Message]], Awaitable[Completion]]


def policy_of(sections: Mapping[str, ContextSection], scaffold: str) -> ContextPolicy | None:
    """What the configuration says for a scaffold; None: its history only grows."""
    match sections.get(scaffold):
        case None | NoContext():
            return None
        case SlidingWindowContext(max_turns=most, keep_turns=keep):
            return SlidingWindow(most, keep)
        case PeriodicSummaryContext(max_turns=most, keep_turns=keep):
            return PeriodicSummary(most, keep)
        case DropRepliesContext(past=share, keep_turns=keep):
            return DropReplies(share, keep)


class ManagedHistory:
    """One agent's history under a policy. `context`: tokens that a state and its action may have."""

    def __init__(self, policy: ContextPolicy, context: int) -> None:
        self._policy = policy
        self._context = context
        self._lock = anyio.Lock()  # a policy may ask for a completion in between
        self._begin()

    def _begin(self) -> None:
        self.used = 0  # tokens of the last state + action
        self._kept: list[Message] = []  # the scaffold's history at the last completion
        self._head: list[Message] = []
        self._rest: list[Message] = []  # what stands for the first `_replaced` messages, head apart
        self._replaced = 0

    async def fit(self, messages: Sequence[Message], ask: Ask) -> tuple[list[Message], str | None]:
        """(the messages to complete, why they are not those that they were, or None). Raises what the policy and `ask` raise."""
        async with self._lock:
            if list(messages[: len(self._kept)]) != self._kept:
                self._begin()
            self._kept = list(messages)
            if not self._replaced:
                self._head = list(_before_reply(messages))
            rest = [*self._rest, *messages[self._replaced or len(self._head) :]]
            shorter = await self._policy.fit(Past(self._head, rest, self.used, self._context, ask))
            if shorter is None:
                return [*self._head, *rest], None
            self._rest, self._replaced = shorter, len(messages)
            return [*self._head, *shorter], self._policy.name


def _before_reply(messages: Sequence[Message]) -> Sequence[Message]:
    replies = (i for i, message in enumerate(messages) if message.get("role") == "assistant")
    return messages[: next(replies, len(messages))]
