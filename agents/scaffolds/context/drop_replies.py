"""Past a share of the context, earlier replies and tool returns are dropped: 30 % in MiniMax's report on Forge."""

from dataclasses import dataclass
from typing import Final

from scaffolds.base import Message
from scaffolds.context.base import Past, newest, turns_of


@dataclass(frozen=True, slots=True)
class DropReplies:
    """When the last state + action was longer than the share `past` of the context, replies and tool returns go, but for the newest
    `keep_turns` turns; what users said stays. 0 < past ≤ 1, keep_turns ≥ 0.
    """

    past: float
    keep_turns: int
    name: Final = "drop_replies"

    async def fit(self, past: Past) -> list[Message] | None:
        if past.used <= self.past * past.context:
            return None
        kept = newest(turns_of(past.rest), self.keep_turns)
        older = past.rest[: len(past.rest) - len(kept)]
        said = [message for message in older if message.get("role") not in ("assistant", "tool")]
        return [*said, *kept] if len(said) < len(older) else None
