"""Periodic summary: the policy sums up what it has done, and its words stand for it."""

from dataclasses import dataclass
from typing import Final

from scaffolds.base import Message, PolicyFault
from scaffolds.context.base import Past, newest, turns_of

REQUEST: Final = (
    "Sum up the work so far: what you found out, what you changed, what is left to do. "
    "Call no tool. Only your summary will stay; everything before it goes."
)
HEADING: Final = "Your summary of the work so far:\n"


@dataclass(frozen=True, slots=True)
class PeriodicSummary:
    """Once the history holds `max_turns` turns, a summary stands for all of it, followed by the newest `keep_turns`, 0 ≤ keep_turns < max_turns.

    An older summary is part of what the new one sums up. Asking for it is a completion that continues the history, and trains.
    """

    max_turns: int
    keep_turns: int
    name: Final = "periodic_summary"

    async def fit(self, past: Past) -> list[Message] | None:
        turns = turns_of(past.rest)
        if len(turns) < self.max_turns:
            return None
        reply = await past.ask([*past.head, *past.rest, {"role": "user", "content": REQUEST}])
        summary = reply.content.strip()
        if not summary:
            raise PolicyFault("summary: asked to sum up its work, the policy wrote nothing")
        return [{"role": "user", "content": HEADING + summary}, *newest(turns, self.keep_turns)]
