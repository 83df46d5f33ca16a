"""Periodic summary: the policy summarizes its work, and the summary replaces the history."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import Field

from scaffolds.base import Message, PolicyFault
from scaffolds.context.base import Past, check_turns, newest, turns_of

REQUEST: Final = (
    "Sum up the work so far: what you found out, what you changed, what is left to do. "
    "Call no tool. Only your summary will stay; everything before it goes."
)
HEADING: Final = "Your summary of the work so far:\n"


@dataclass(frozen=True, slots=True)
class PeriodicSummary:
    """When the history holds `max_turns` turns, a summary replaces all of it, followed by the newest `keep_turns`, 0 ≤ keep_turns < max_turns.

    A new summary covers the older one. The request for it is a completion that continues the history, and trains.
    """

    max_turns: Annotated[int, Field(ge=1)] = 8
    keep_turns: Annotated[int, Field(ge=0)] = 1
    name: ClassVar[str] = "periodic_summary"

    def __post_init__(self) -> None:
        check_turns(self.max_turns, self.keep_turns)

    async def fit(self, past: Past) -> list[Message] | None:
        turns = turns_of(past.rest)
        if len(turns) < self.max_turns:
            return None
        reply = await past.ask([*past.head, *past.rest, {"role": "user", "content": REQUEST}])
        summary = reply.content.strip()
        if not summary:
            raise PolicyFault("summary: the policy wrote nothing when it had to summarise its work")
        return [{"role": "user", "content": HEADING + summary}, *newest(turns, self.keep_turns)]
