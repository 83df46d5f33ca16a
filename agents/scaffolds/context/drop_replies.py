"""Above a share of the context, earlier replies and tool returns are dropped: 30 % in MiniMax's report on Forge."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from scaffolds.base import Message
from scaffolds.context.base import Past, newest, turns_of


@dataclass(frozen=True, slots=True)
class DropReplies:
    """When the next state would be longer than the share `past` of the context, replies and tool returns are dropped, except for the
    newest `keep_turns` turns. User messages stay. 0 < past ≤ 1, keep_turns ≥ 0.

    With 0, as in the report, all of them are dropped, including the newest tool result: the agent starts again at its task. Kept turns
    are dropped too if the state would otherwise leave no room for an action.
    """

    past: Annotated[float, Field(gt=0, le=1)] = 0.3
    keep_turns: Annotated[int, Field(ge=0)] = 0
    name: ClassVar[str] = "drop_replies"

    async def fit(self, past: Past) -> list[Message] | None:
        turns = turns_of(past.rest)
        target = round(self.past * past.context, 6)  # 0.29 · 100 is 29
        if not turns or await past.length([*past.head, *past.rest]) <= target:
            return None
        for keep in range(min(self.keep_turns, len(turns)), -1, -1):
            newest_turns = newest(turns, keep)
            older = past.rest[: len(past.rest) - len(newest_turns)]
            prompts = [message for message in older if message.get("role") not in ("assistant", "tool")]
            if not keep or await past.length([*past.head, *prompts, *newest_turns]) < past.context:
                break
        return [*prompts, *newest_turns] if len(prompts) < len(older) else None
