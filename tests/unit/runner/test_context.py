"""The history that a scaffold keeps, and the texts that replace parts of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from scaffolds.base import Completion, Message
from scaffolds.context.base import Past
from scaffolds.context.drop_replies import DropReplies
from scaffolds.context.sliding_window import SlidingWindow

from orchestrator.runner.context import ManagedHistory

pytestmark = pytest.mark.anyio

TASK: Message = {"role": "user", "content": "the task"}


def message_of(who: str, what: object) -> Message:
    return {"role": who, "content": str(what)}


def turns(*numbers: int) -> list[Message]:
    return [message for n in numbers for message in (message_of("assistant", n), message_of("tool", n))]


async def never(messages: Sequence[Message]) -> Completion:
    raise AssertionError("no one asks")


async def letters(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


async def test_the_scaffold_only_appends_and_the_completions_follow_the_rewritten_history() -> None:
    managed = ManagedHistory(SlidingWindow(max_turns=3, keep_turns=1), 1000)
    requested, reasons = [], []
    for n in range(7):
        messages, reason = await managed.fit([TASK, *turns(*range(n))], never, letters)
        requested.append([int(m["content"]) for m in messages[1:] if m["role"] == "assistant"])
        reasons.append(reason)
        assert messages[0] == TASK
    assert requested == [[], [0], [0, 1], [2], [2, 3], [4], [4, 5]]
    assert reasons == [None, None, None, "sliding_window", None, "sliding_window", None]


async def test_a_history_that_does_not_go_on_from_the_last_one_starts_over() -> None:
    managed = ManagedHistory(SlidingWindow(max_turns=3, keep_turns=1), 1000)
    await managed.fit([TASK, *turns(0, 1, 2)], never, letters)
    other = [TASK, message_of("user", "replaced by the scaffold"), *turns(8, 9)]
    assert await managed.fit(other, never, letters) == (other, None)
    assert await managed.fit([*other, *turns(10)], never, letters) == (
        [*other[:2], *turns(10)],
        "sliding_window",
    )


def called(identifier: str) -> Message:
    return {"role": "assistant", "content": "a" * 10, "tool_calls": [{"id": identifier}]}


def result(identifier: str, size: int = 10) -> Message:
    return {"role": "tool", "tool_call_id": identifier, "content": "r" * size}


async def test_a_large_observation_is_dropped_before_it_is_sent() -> None:
    """The task has 8 letters, a share of 30 % of the context 30: the state about to be sent counts, not the one before."""
    managed = ManagedHistory(DropReplies(), 100)
    history = [TASK, called("a"), result("a", 12)]
    assert await managed.fit(history, never, letters) == (history, None), "30 letters are not past 30 %"
    history = [*history[:2], result("a", 13)]
    managed = ManagedHistory(DropReplies(), 100)
    assert await managed.fit(history, never, letters) == ([TASK], "drop_replies"), "31 are"
    history += [called("b"), result("b", 500)]
    assert await managed.fit(history, never, letters) == ([TASK], "drop_replies"), (
        "nor one longer than the context"
    )
    history += [called("c"), result("c", 12)]
    assert await managed.fit(history, never, letters) == ([TASK, *history[-2:]], None)


async def test_the_first_turn_is_never_dropped_however_long_the_task_is() -> None:
    task = message_of("user", "t" * 99)
    assert await ManagedHistory(DropReplies(), 100).fit([task], never, letters) == ([task], None)


async def test_parallel_results_go_and_stay_with_their_call() -> None:
    both: Message = {**called("a"), "tool_calls": [{"id": "a"}, {"id": "b"}]}
    newer = [{**both, "tool_calls": [{"id": "c"}, {"id": "d"}]}, result("c", 5), result("d", 5)]
    managed = ManagedHistory(DropReplies(keep_turns=1), 100)
    messages, reason = await managed.fit([TASK, both, result("a"), result("b"), *newer], never, letters)
    assert (messages, reason) == ([TASK, *newer], "drop_replies")


async def test_a_result_that_comes_after_its_call_was_dropped_is_left_out() -> None:
    both: Message = {**called("a"), "tool_calls": [{"id": "a"}, {"id": "b"}]}
    history = [TASK, both, result("a", 50)]
    managed = ManagedHistory(DropReplies(), 100)
    assert (await managed.fit(history, never, letters))[0] == [TASK]
    history += [result("b", 5), called("c"), result("c", 5)]
    assert await managed.fit(history, never, letters) == ([TASK, *history[-2:]], None)


async def test_each_agent_has_a_history_of_its_own() -> None:
    policy = DropReplies()
    main, helper = ManagedHistory(policy, 100), ManagedHistory(policy, 100)
    history = [TASK, called("a"), result("a", 50)]
    assert (await main.fit(history, never, letters))[1] == "drop_replies"
    short = [TASK, called("a"), result("a", 5)]
    assert await helper.fit(short, never, letters) == (short, None)


@dataclass
class Tail:
    """A policy that cuts turns in two."""

    name: str = "tail"

    async def fit(self, past: Past) -> list[Message] | None:
        return list(past.rest[-1:])


async def test_a_policy_that_keeps_a_result_without_its_call_is_refused_by_name() -> None:
    managed = ManagedHistory(Tail(), 100)
    with pytest.raises(ValueError, match="'tail' keeps a tool result without the reply that called the tool"):
        await managed.fit([TASK, called("a"), result("a")], never, letters)
