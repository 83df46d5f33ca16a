"""Sliding window: the task and the newest turns."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from scaffolds.base import Message
from scaffolds.context.base import Past, check_turns, newest, turns_of


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """When the history holds `max_turns` turns, the newest `keep_turns` stay, 1 ≤ keep_turns < max_turns.

    A large difference makes rewrites rare. Every rewrite costs the rollout server its prefix cache.
    """

    max_turns: Annotated[int, Field(ge=1)] = 8
    keep_turns: Annotated[int, Field(ge=1)] = 4
    name: ClassVar[str] = "sliding_window"

    def __post_init__(self) -> None:
        check_turns(self.max_turns, self.keep_turns)

    async def fit(self, past: Past) -> list[Message] | None:
        turns = turns_of(past.rest)
        return newest(turns, self.keep_turns) if len(turns) >= self.max_turns else None
