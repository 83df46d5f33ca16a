"""What each context policy makes of a history."""

import doctest
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import scaffolds.context.base
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
class Asked:
    """The policy when it is asked to sum up: says `content`."""

    content: str = "all is well"
    histories: list[list[Message]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message]) -> Completion:
        self.histories.append(list(messages))
        return cast(Completion, self)


def past(rest: Sequence[Message], *, used: int = 0, ask: Any = None) -> Past:
    return Past(HEAD, rest, used, 1000, ask or Asked())


def test_the_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(scaffolds.context.base).failed == 0


async def test_the_window_slides_when_it_is_full_and_keeps_whole_turns() -> None:
    window = SlidingWindow(max_turns=4, keep_turns=2)
    assert await window.fit(past(turns(1, 2, 3))) is None
    assert await window.fit(past([*turns(1, 2, 3), *turn(4, results=3)])) == [*turn(3), *turn(4, results=3)]
    assert await window.fit(past([])) is None


async def test_a_summary_stands_for_everything_before_it_older_summaries_included() -> None:
    policy, asked = PeriodicSummary(max_turns=3, keep_turns=1), Asked(" found oak \n")
    assert await policy.fit(past(turns(1, 2), ask=asked)) is None and asked.histories == []
    older: Message = {"role": "user", "content": HEADING + "an older one"}
    rest = [older, *turns(1, 2, 3)]
    summary = {"role": "user", "content": HEADING + "found oak"}
    assert await policy.fit(past(rest, ask=asked)) == [summary, *turn(3)]
    assert asked.histories == [[*HEAD, *rest, {"role": "user", "content": REQUEST}]]
    assert await PeriodicSummary(3, 0).fit(past(rest, ask=asked)) == [summary]


async def test_a_policy_that_writes_no_summary_ends_its_episode() -> None:
    with pytest.raises(PolicyFault, match=r"^summary: "):
        await PeriodicSummary(1, 0).fit(past(turns(1), ask=Asked(" ")))


async def test_past_its_share_of_the_context_replies_and_tool_returns_go_and_what_users_said_stays() -> None:
    policy = DropReplies(0.3, keep_turns=1)
    said: Message = {"role": "user", "content": "mind the oak"}
    rest = [*turn(1), said, *turns(2, 3)]
    assert await policy.fit(past(rest, used=300)) is None
    assert await policy.fit(past(rest, used=301)) == [said, *turn(3)]
    assert await DropReplies(0.3, 0).fit(past(rest, used=301)) == [said]
    assert await policy.fit(past([said, *turn(3)], used=301)) is None, "there is nothing to drop"
