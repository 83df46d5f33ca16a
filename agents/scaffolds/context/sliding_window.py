"""Sliding window: the task and the newest turns."""

from dataclasses import dataclass
from typing import Final

from scaffolds.base import Message
from scaffolds.context.base import Past, newest, turns_of


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Once the history holds `max_turns` turns, the newest `keep_turns` stay, 1 ≤ keep_turns < max_turns.

    Far apart, the two numbers make rewrites rare: every rewrite costs the rollout server its prefix cache.
    """

    max_turns: int
    keep_turns: int
    name: Final = "sliding_window"

    async def fit(self, past: Past) -> list[Message] | None:
        turns = turns_of(past.rest)
        return newest(turns, self.keep_turns) if len(turns) >= self.max_turns else None
