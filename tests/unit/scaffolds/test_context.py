"""The effect of each context policy on a history."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from scaffolds.base import Completion, Message, PolicyFault
from scaffolds.context.base import Past
from scaffolds.context.drop_replies import DropReplies
from scaffolds.context.periodic_summary import HEADING, REQUEST, PeriodicSummary
from scaffolds.context.sliding_window import SlidingWindow

pytestmark = pytest.mark.anyio

HEAD: list[Message] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the task"}]


def turn(number: int, *, results: int = 1) -> list[Message]:
    reply: Message = {"role": "assistant", "content": f"reply {number}"}
    return [reply, *({"role": "tool", "content": f"result {number}.{i}"} for i in range(results))]


def turns(*numbers: int) -> list[Message]:
    return [message for number in numbers for message in turn(number)]


@dataclass
class Summariser:
    """The policy at a request for a summary: replies `content`."""

    content: str = "all is well"
    histories: list[list[Message]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message]) -> Completion:
        self.histories.append(list(messages))
        return cast(Completion, self)


def past(rest: Sequence[Message], *, size: int = 0, ask: Any = None) -> Past:
    """A history in which each message of `rest` has `size` tokens, and the head has none."""

    async def length(messages: Sequence[Message]) -> int:
        return size * (len(messages) - len(HEAD))

    return Past(head=HEAD, rest=rest, context=1000, length=length, ask=ask or Summariser())


async def test_the_window_slides_when_it_is_full_and_keeps_whole_turns() -> None:
    window = SlidingWindow(max_turns=4, keep_turns=2)
    assert await window.fit(past(turns(1, 2, 3))) is None
    assert await window.fit(past([*turns(1, 2, 3), *turn(4, results=3)])) == [*turn(3), *turn(4, results=3)]
    assert await window.fit(past([])) is None


async def test_a_summary_stands_for_everything_before_it_older_summaries_included() -> None:
    policy, summariser = PeriodicSummary(max_turns=3, keep_turns=1), Summariser(" found oak \n")
    assert await policy.fit(past(turns(1, 2), ask=summariser)) is None and summariser.histories == []
    older: Message = {"role": "user", "content": HEADING + "an older one"}
    rest = [older, *turns(1, 2, 3)]
    summary = {"role": "user", "content": HEADING + "found oak"}
    assert await policy.fit(past(rest, ask=summariser)) == [summary, *turn(3)]
    assert summariser.histories == [[*HEAD, *rest, {"role": "user", "content": REQUEST}]]
    assert await PeriodicSummary(3, 0).fit(past(rest, ask=summariser)) == [summary]


async def test_a_policy_that_writes_no_summary_ends_its_attempt() -> None:
    with pytest.raises(PolicyFault, match=r"^summary: "):
        await PeriodicSummary(1, 0).fit(past(turns(1), ask=Summariser(" ")))


async def test_past_its_share_of_the_context_replies_and_tool_returns_go_and_user_messages_stay() -> None:
    instruction: Message = {"role": "user", "content": "mind the oak"}
    rest = [*turn(1), instruction, *turn(2)]
    assert await DropReplies().fit(past(rest, size=60)) is None, "exactly 30 %"
    assert await DropReplies().fit(past(rest, size=61)) == [instruction], "all of them, as in the report"
    assert await DropReplies(keep_turns=1).fit(past(rest, size=61)) == [instruction, *turn(2)]
    assert await DropReplies(keep_turns=1).fit(past(turn(1), size=200)) is None, "there is nothing to drop"
    assert await DropReplies().fit(past([instruction] * 9, size=200)) is None, "nor here"
    assert await DropReplies(past=0.29).fit(past(turn(1), size=145)) is None, "290 of 1,000 are 29 %"


async def test_turns_that_leave_no_room_for_an_action_are_not_kept() -> None:
    rest = turns(1, 2, 3)
    assert await DropReplies(keep_turns=2).fit(past(rest, size=249)) == turns(2, 3)
    assert await DropReplies(keep_turns=2).fit(past(rest, size=250)) == turn(3)
    assert await DropReplies(keep_turns=2).fit(past(rest, size=500)) == []
