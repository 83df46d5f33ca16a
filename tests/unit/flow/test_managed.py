"""The history that a scaffold keeps, and what stands for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from scaffolds.base import Completion, Message
from scaffolds.context.base import Past
from scaffolds.context.drop_replies import DropReplies
from scaffolds.context.periodic_summary import PeriodicSummary
from scaffolds.context.sliding_window import SlidingWindow

from orchestrator.config import Config
from orchestrator.flow.managed import ManagedHistory, policy_of

pytestmark = pytest.mark.anyio

TASK: Message = {"role": "user", "content": "the task"}


def said(who: str, what: object) -> Message:
    return {"role": who, "content": str(what)}


def turns(*numbers: int) -> list[Message]:
    return [message for n in numbers for message in (said("assistant", n), said("tool", n))]


async def never(messages: Sequence[Message]) -> Completion:
    raise AssertionError("nobody asks")


@dataclass
class Noted:
    """A policy that writes down what it is given."""

    name: str = "noted"
    seen: list[Past] = field(default_factory=list)

    async def fit(self, past: Past) -> list[Message] | None:
        self.seen.append(past)
        return None


async def test_the_scaffold_only_appends_and_the_completions_follow_the_rewritten_history() -> None:
    managed = ManagedHistory(SlidingWindow(max_turns=3, keep_turns=1), 1000)
    asked, reasons = [], []
    for n in range(7):
        messages, reason = await managed.fit([TASK, *turns(*range(n))], never)
        asked.append([int(m["content"]) for m in messages[1:] if m["role"] == "assistant"])
        reasons.append(reason)
        assert messages[0] == TASK
    assert asked == [[], [0], [0, 1], [2], [2, 3], [4], [4, 5]]
    assert reasons == [None, None, None, "sliding_window", None, "sliding_window", None]


async def test_a_history_that_does_not_go_on_from_the_last_one_begins_anew() -> None:
    managed = ManagedHistory(SlidingWindow(max_turns=3, keep_turns=1), 1000)
    await managed.fit([TASK, *turns(0, 1, 2)], never)
    other = [TASK, said("user", "replaced by the scaffold"), *turns(8, 9)]
    assert await managed.fit(other, never) == (other, None)
    assert await managed.fit([*other, *turns(10)], never) == ([*other[:2], *turns(10)], "sliding_window")


async def test_what_a_policy_knows_of_the_tokens_belongs_to_the_history_that_it_is_asked_about() -> None:
    policy = Noted()
    managed = ManagedHistory(policy, 1000)
    await managed.fit([TASK], never)
    managed.used = 77
    await managed.fit([TASK, *turns(0)], never)
    await managed.fit([said("user", "another"), *turns(5)], never)
    assert [(past.used, past.context) for past in policy.seen] == [(0, 1000), (77, 1000), (0, 1000)]
    assert [list(past.head) for past in policy.seen] == [[TASK], [TASK], [said("user", "another")]]


def test_the_configuration_names_one_policy_per_scaffold() -> None:
    tables = {
        "grows": {"policy": "none"},
        "window": {"policy": "sliding_window", "max_turns": 6, "keep_turns": 2},
        "summary": {"policy": "periodic_summary"},
        "share": {"policy": "drop_replies"},
    }
    context = Config.model_validate({"rollout": {"context": tables}}).rollout.context
    assert {name: policy_of(context, name) for name in (*tables, "unnamed")} == {
        "grows": None,
        "window": SlidingWindow(6, 2),
        "summary": PeriodicSummary(8, 1),
        "share": DropReplies(0.3, 1),
        "unnamed": None,
    }
