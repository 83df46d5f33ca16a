"""Random conversations against one session's forest: under any harness, nothing sampled is lost, re-encoded or confused.

After every call: the stored deltas fold to the sent ids (`Driver.step`); a continuing step's state begins with its parent's full ids; a
replayed history finds the very step that it replays; a step that is not a plain continuation states its reason.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages.turns import read_messages
from orchestrator.gateway.render import Renderer, load_renderer
from orchestrator.gateway.sessions.node import Node
from tests.unit.gateway.conftest import KINDS, model_directory
from tests.unit.gateway.driver import Driver, Message, Stepped, replayed, respond, saying, user

seeds = st.integers(0, 2**32)


@dataclass(frozen=True, eq=False, kw_only=True)
class Talk:
    """A conversation that ends with an answer of the policy: the messages that the harness remembers, and the step that gave the
    answer. `given`: the positions of the policy's answers to this very conversation; others were given elsewhere, or never."""

    messages: tuple[Message, ...]
    last: Stepped
    tools: str = ""
    given: tuple[int, ...] = ()


def machine(renderer: Renderer) -> type[RuleBasedStateMachine]:
    """The state machine over one renderer."""

    class ForestMachine(RuleBasedStateMachine):
        talks = Bundle("talks")

        @initialize()
        def begin(self) -> None:
            self.driver = Driver(renderer)
            self.fresh = 0

        def call(
            self,
            messages: list[Message],
            dice: random.Random,
            tools: str = "",
            cut: bool = False,
            given: tuple[int, ...] = (),
        ) -> Talk:
            says = saying(dice)
            tokens = len(renderer.action(says))
            length = dice.randrange(1, tokens) if cut and tokens > 1 else None
            stepped = self.driver.step(messages, says, tools=tools, cut=length)
            node, origin = stepped.node, stepped.origin
            state = node.full[: node.state_len]
            if origin.parent is not None:
                assert np.array_equal(origin.parent.full[: origin.keep_len], state[: origin.keep_len])
            if origin.kind is StepKind.CONTINUES:
                assert origin.parent is not None and origin.parent is node.parent
                assert origin.keep_len == len(origin.parent.full)
                plain = len(origin.parent.children) == 1 and not stepped.placement.foreign
                expected = (
                    {None, "closed"} if plain else {"sibling", "rewritten", "shortened", "foreign_turn"}
                )
                assert origin.reason in expected
                assert (origin.reason == "closed") is (plain and not origin.parent.ended)
            else:
                assert (origin.reason is None) is (node.idx == 0), "every new branch says why"
            if origin.reason not in (None, "closed", "sibling"):
                assert origin.difference is not None
            served = read_messages([stepped.message])[0][0]
            assert served == structs.replace(node.reply, hint=served.hint), (
                "what is served is what was parsed"
            )
            return Talk(
                messages=(*messages, stepped.message),
                last=stepped,
                tools=tools,
                given=(*given, len(messages)),
            )

        @rule(target=talks, seed=seeds, system=st.booleans(), cut=st.booleans())
        def a_new_conversation(self, seed: int, system: bool, cut: bool) -> Talk:
            self.fresh += 1
            opening = [{"role": "system", "content": "be brief"}] if system else []
            talk = self.call([*opening, user(f"task {self.fresh}")], random.Random(seed), cut=cut)
            assert talk.last.node.parent is None
            return talk

        @rule(target=talks, talk=consumes(talks), seed=seeds, cut=st.booleans())
        def the_next_turn(self, talk: Talk, seed: int, cut: bool) -> Talk:
            dice = random.Random(seed)
            messages = [*talk.messages, *respond(talk.messages[-1], dice)]
            onward = self.call(messages, dice, talk.tools, cut, talk.given)
            assert indistinguishable(onward.last.node.parent, talk.last.node)
            return onward

        @rule(target=talks, talk=talks, seed=seeds)
        def the_next_turn_of_a_program_that_writes_history_its_own_way(self, talk: Talk, seed: int) -> Any:
            dice = random.Random(seed)
            messages = [*talk.messages, *respond(talk.messages[-1], dice)]
            sent = replayed(messages, dice)
            onward = self.call(sent, dice, talk.tools, False, talk.given)
            parent = onward.last.node.parent
            # Written in the program's way, answers to the same question may be indistinguishable.
            written = read_messages([sent[len(talk.messages) - 1]])[0][0]
            assert parent is not None and parent.reply.same(written)
            if talk.messages[-1]["tool_calls"]:  # their ids name the step
                assert parent is talk.last.node
            # With its reasoning again, the history would be that of the other one.
            if parent is not talk.last.node:
                return multiple()
            return replace(onward, messages=(*messages, onward.messages[-1]))

        @rule(target=talks, talk=talks, seed=seeds)
        def the_same_body_again(self, talk: Talk, seed: int) -> Talk:
            again = self.call(
                list(talk.messages[:-1]), random.Random(seed), talk.tools, False, talk.given[:-1]
            )
            assert again.last.origin.reason == "sibling"
            assert np.array_equal(
                again.last.node.full[: again.last.node.state_len],
                talk.last.node.full[: talk.last.node.state_len],
            )
            return again

        @rule(target=talks, talk=talks, seed=seeds)
        def an_earlier_answer_is_taken_up_again(self, talk: Talk, seed: int) -> Talk:
            dice = random.Random(seed)
            at = dice.choice(talk.given)
            earlier = talk.messages[: at + 1]
            given = talk.given[: talk.given.index(at) + 1]
            onward = self.call([*earlier, *respond(earlier[-1], dice)], dice, talk.tools, False, given)
            assert onward.last.node.parent is not None
            assert onward.last.node.parent.reply.same(read_messages([earlier[-1]])[0][0])
            return onward

        @rule(target=talks, talk=talks, seed=seeds)
        def a_rewritten_history(self, talk: Talk, seed: int) -> Talk:
            dice = random.Random(seed)
            questions = [i for i, message in enumerate(talk.messages) if message["role"] == "user"]
            at = dice.choice(questions)
            messages = list(talk.messages)
            self.fresh += 1
            messages[at] = user(f"{messages[at]['content']} again {self.fresh}")
            given = tuple(i for i in talk.given if i < at)
            onward = self.call([*messages, *respond(messages[-1], dice)], dice, talk.tools, False, given)
            difference = onward.last.origin.difference
            assert difference is not None and difference.turn <= at
            for message in messages:  # it contains the sampled text unchanged
                if message["role"] == "assistant":
                    spoken = read_messages([message])[0][0]
                    known = [node.action for node in self.driver.forest.nodes if node.reply.same(spoken)]
                    assert not known or any(contains(onward.last.node.full, action) for action in known)
            return onward

        @rule(target=talks, talk=talks, seed=seeds)
        def an_answer_that_the_policy_never_gave(self, talk: Talk, seed: int) -> Talk:
            dice = random.Random(seed)
            self.fresh += 1
            invented: Message = {"role": "assistant", "content": f"so {self.fresh}.", "tool_calls": []}
            messages = [*talk.messages, *respond(talk.messages[-1], dice), invented, user("go on")]
            onward = self.call(messages, dice, talk.tools, False, talk.given)
            assert onward.last.node.parent is not None and onward.last.origin.reason is not None
            assert f"so {self.fresh}." in renderer.decode(
                onward.last.node.full[: onward.last.node.state_len].tolist()
            )
            return onward

        @rule(target=talks, talk=talks, seed=seeds)
        def a_side_conversation_with_other_tools(self, talk: Talk, seed: int) -> Talk:
            dice = random.Random(seed)
            messages = [*talk.messages, *respond(talk.messages[-1], dice)]
            other = f"tools {dice.randrange(2)}{talk.tools}"
            known = {node.tools for node in self.driver.forest.nodes}
            onward = self.call(messages, dice, other)
            if other not in known:
                assert onward.last.node.parent is None and onward.last.origin.reason == "tools"
            return onward

    return ForestMachine


def indistinguishable(found: Node | None, meant: Node) -> bool:
    """Whether `found` is the step that is `meant`, or a step that no request could distinguish from it: the same state, the same
    answer, and no tool call whose id would name it."""
    if found is meant:
        return True
    if found is None or meant.reply.calls:
        return False
    # White space at its ends is the sampler's, not the message's: equal answers may be other ids.
    one, other = (node.full[: node.state_len] for node in (found, meant))
    return np.array_equal(one, other) and found.reply.same(meant.reply)


def contains(whole: Any, part: Any) -> bool:
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))
    return bool((windows == part).all(axis=1).any())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_sampled_is_lost_re_encoded_or_confused(kind: str, tmp_path: Path) -> None:
    renderer = load_renderer(model_directory(kind, tmp_path / kind))
    # Its draws must not differ from run to run; `ops/fuzz forest` searches further.
    drawn = settings(max_examples=30, stateful_step_count=14, deadline=None, derandomize=True)
    run_state_machine_as_test(machine(renderer), settings=drawn)
