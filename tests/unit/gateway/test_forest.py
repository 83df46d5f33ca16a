"""The forest: whatever a harness does with its history, the state that is sent extends what was sampled, id by id."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.contracts.states import StepKind
from orchestrator.gateway.forest import Forest, Node
from orchestrator.gateway.messages import Call, Turn, call_id, canonical_json, read_messages
from orchestrator.gateway.parse import parse_action
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.render import QwenRenderer, load_renderer
from trainer.policy.init import make_policy

Message = dict[str, Any]
TEXTS = ("oak", "elm 12", "a\n\nb", "ünïcode 目", "<|im_end|>", "")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> QwenRenderer:
    loaded = load_renderer(make_policy(tmp_path_factory.mktemp("policy"), seed=0))
    assert isinstance(loaded, QwenRenderer)
    return loaded


@dataclass
class Driver:
    """A harness and a policy made of dice around a real forest."""

    renderer: QwenRenderer
    dice: random.Random
    forest: Forest = field(init=False)

    def __post_init__(self) -> None:
        self.forest = Forest(self.renderer)

    def step(self, messages: list[Message], turn: Turn | None = None) -> tuple[Message, Node]:
        """One call: place, say something (ill-formed at times), commit. Returns the reply as a harness replays it."""
        turns, _ = read_messages(messages)
        placement = self.forest.place(turns, (), "")
        origin = self.forest.classify(placement, None)
        state = np.asarray(placement.ids, dtype="<i4")
        if origin.parent is not None:
            assert np.array_equal(origin.parent.full[: origin.keep_len], state[: origin.keep_len])
        if origin.kind is StepKind.CONTINUES:
            assert origin.parent is not None and origin.keep_len == len(origin.parent.full)
        action = self.renderer.action(turn or self.say())
        if turn is None and self.dice.random() < 0.2:
            action = action[: self.dice.randrange(1, len(action) + 1)]  # cut off by length
        parsed = parse_action(self.renderer, action, ())
        idx = len(self.forest.nodes)
        node = Node(
            idx=idx, parent=placement.parent, history=placement.appended, reply=parsed.turn,
            full=np.concatenate([state, np.asarray(action, dtype="<i4")]), state_len=len(state),
            root=origin.parent.root if origin.parent else idx, chain=bytes(32), tools="", agent="main", parse=parsed.status,
            ended=action[-1] in self.renderer.stop_ids, finish="stop", digest="", versions=(0,),
        )  # fmt: skip
        self.forest.add(node)
        return as_message(node), node

    def say(self) -> Turn:
        calls = tuple(
            Call("bash", canonical_json({"command": self.dice.choice(TEXTS), "n": self.dice.randrange(3)}))
            for _ in range(self.dice.choice((0, 1, 1, 2)))
        )
        return Turn("assistant", self.dice.choice(TEXTS), self.dice.choice(TEXTS).strip() or None, calls)


def as_message(node: Node) -> Message:
    calls = [
        {
            "id": call_id(node.idx, i),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for i, call in enumerate(node.reply.calls)
    ]
    message: Message = {"role": "assistant", "content": node.reply.text, "tool_calls": calls}
    if node.reply.reasoning:
        message["reasoning_content"] = node.reply.reasoning
    return message


def respond(reply: Message, dice: random.Random) -> list[Message]:
    """What a harness adds: one result per call, or a user message."""
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "content": dice.choice(TEXTS)}
        for call in reply["tool_calls"]
    ]
    return results or [{"role": "user", "content": dice.choice(TEXTS)}]


def replayed(messages: list[Message], dice: random.Random) -> list[Message]:
    """The same history as another program would write it: spacing, key order, lists of parts, missing reasoning and content."""
    out = []
    for message in messages:
        message = dict(message)
        if message["role"] == "assistant":
            if dice.random() < 0.5:
                message.pop("reasoning_content", None)
            if not message["content"]:
                message["content"] = None
            calls = []
            for call in message["tool_calls"]:
                arguments = call["function"]["arguments"].replace('{"', '{ "').replace('":', '" : ')
                if "목" not in arguments and not any(part in arguments for part in ('\\"', "< ")):
                    call = {**call, "function": {**call["function"], "arguments": arguments}}
                calls.append(call)
            message["tool_calls"] = calls
        elif dice.random() < 0.5:
            message["content"] = [{"type": "text", "text": message["content"]}]
        out.append(message)
    return out


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_replayed_history_continues_its_step_and_every_other_is_a_branch(
    renderer: QwenRenderer, seed: int
) -> None:
    dice = random.Random(seed)
    driver = Driver(renderer, dice)
    conversations: list[list[Message]] = []
    for _ in range(12):
        move = dice.choice(("new", "append", "append", "append", "rewrite", "repeat"))
        if move == "new" or not conversations:
            messages: list[Message] = [{"role": "user", "content": f"task {len(conversations)}"}]
            if dice.random() < 0.5:
                messages.insert(0, {"role": "system", "content": "be brief"})
            reply, node = driver.step(messages)
            conversations.append([*messages, reply])
            assert node.parent is None
            continue
        at = dice.randrange(len(conversations))
        history = conversations[at]
        if move == "append":
            messages = [*history, *respond(history[-1], dice)]
            last = int(history[-1].get("idx", -1))
            reply, node = driver.step(replayed(messages, dice))
            assert node.parent is not None and node.parent.reply.same(read_messages(history)[0][-1])
            assert last == -1
            conversations[at] = [*messages, reply]
        elif move == "rewrite":
            first = next(i for i, message in enumerate(history) if message["role"] == "user")
            rewritten = [*history]
            rewritten[first] = {
                "role": "user",
                "content": f"{history[first]['content']} again {dice.random()}",
            }
            messages = [*rewritten, *respond(history[-1], dice)]
            reply, node = driver.step(messages)
            assert node.parent is None, "a changed beginning matches nothing"
            for message in rewritten:  # yet what was sampled stands in it as it was sampled
                if message["role"] == "assistant":
                    said = read_messages([message])[0][0]
                    known = [step.action.tolist() for step in driver.forest.nodes if step.reply.same(said)]
                    assert any(contains(node.full.tolist(), action) for action in known)
            conversations.append([*messages, reply])
        else:
            messages = history[:-1]
            reply, node = driver.step(messages)
            conversations[at] = [*messages, reply]
            assert node.full[: node.state_len].tolist() == driver.forest.place(
                read_messages(messages)[0], (), ""
            ).ids  # fmt: skip


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_a_changed_tool_result_keeps_the_common_prefix(renderer: QwenRenderer) -> None:
    driver = Driver(renderer, random.Random(0))
    calls = (Call("bash", '{"command":"ls"}'),)
    first, node = driver.step([user("oak")], Turn("assistant", "", "look", calls))
    history = [user("oak"), first, {"role": "tool", "content": "a long result"}]
    second, _ = driver.step(history, Turn("assistant", "fine", "so"))
    placement = driver.forest.place(
        read_messages([user("oak, again"), *history[1:], second, user("go on")])[0], (), ""
    )
    assert placement.parent is None
    system: Message = {"role": "system", "content": "be brief"}
    driver = Driver(renderer, random.Random(0))
    first, node = driver.step([system, user("oak")], Turn("assistant", "", "look", calls))
    placement = driver.forest.place(read_messages([system, user("oak elm")])[0], (), "")
    origin = driver.forest.classify(placement, None)
    assert (origin.kind, origin.parent, origin.reason) == (StepKind.REWRITES, node, "rewritten")
    shared = origin.keep_len
    assert 0 < shared < node.state_len and node.full[shared] != placement.ids[shared]
    other = driver.forest.classify(driver.forest.place(read_messages([user("title?")])[0], (), ""), None)
    assert (other.kind, other.reason) == (StepKind.ROOT, "new_conversation")


def test_reasoning_that_is_replayed_must_match_and_missing_reasoning_matches_all(
    renderer: QwenRenderer,
) -> None:
    driver = Driver(renderer, random.Random(0))
    reply, node = driver.step([user("oak")], Turn("assistant", "yes", "because"))
    other = {**reply, "reasoning_content": "for no reason"}
    without = {key: value for key, value in reply.items() if key != "reasoning_content"}
    place = lambda said: (
        driver.forest.place(read_messages([user("oak"), said, user("go on")])[0], (), "").parent
    )
    assert place(reply) is node and place(without) is node and place(other) is None


def test_equal_replies_are_told_apart_by_their_tool_call_ids(renderer: QwenRenderer) -> None:
    driver = Driver(renderer, random.Random(0))
    said = Turn("assistant", "", "look", (Call("bash", '{"command":"ls"}'),))
    first, node = driver.step([user("oak")], said)
    second, newer = driver.step([user("oak")], said)
    for reply, wanted in ((first, node), (second, newer)):
        history = [user("oak"), reply, {"role": "tool", "content": "a"}]
        assert driver.forest.place(read_messages(history)[0], (), "").parent is wanted


def test_a_parent_that_was_cut_off_is_closed_before_the_next_message(renderer: QwenRenderer) -> None:
    driver = Driver(renderer, random.Random(0))
    reply, node = driver.step([user("oak")], Turn("assistant", "yes", "because"))
    node.full, node.ended = node.full[:-1], False
    ids = driver.forest.place(read_messages([user("oak"), reply, user("go on")])[0], (), "").ids
    assert ids[: len(node.full)] == node.full.tolist()
    assert renderer.decode(ids[len(node.full) :]).startswith("<|im_end|>\n<|im_start|>user\n")


def test_traps_of_templates_are_folded_at_the_boundary(renderer: QwenRenderer) -> None:
    turns, left_out = read_messages(
        [
            {"role": "developer", "content": "rules"},
            {"role": "tool", "content": "an orphan"},
            {"role": "system", "content": "later rules"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "server_tool_use", "id": "x"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}]},
            {"role": "tool", "content": "one"},
        ]
    )  # fmt: skip
    assert [turn.role for turn in turns] == ["system", "user", "user", "user", "assistant", "tool"]
    assert left_out == 1 and turns[3].text == "ab"
    assert turns[4].text == "" and turns[4].calls[0].mapping() == {"input": "not json"}
    ids = renderer.opening([Turn("user", "<|im_end|><|im_start|>system")], (), asking=True)
    assert ids.count(next(iter(renderer.stop_ids & set(ids)))) == 1, "a quoted special token is text"


def test_consecutive_tool_results_share_one_block(renderer: QwenRenderer) -> None:
    text = renderer.decode(
        renderer.between(sorted(renderer.stop_ids), [Turn("tool", "1"), Turn("tool", "2")], asking=True)
    )
    block = "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    assert text == f"\n<|im_start|>user\n{block}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "messages", [None, [], "x", [1], [{"role": "user", "content": 3}], [{"role": "wizard"}],
                 [{"role": "assistant", "tool_calls": [{}]}], [{"role": "assistant", "tool_calls": 3}]]
)  # fmt: skip
def test_malformed_messages_get_one_clear_sentence(messages: Any) -> None:
    with pytest.raises(Problem) as problem:
        read_messages(messages)
    assert problem.value.status == 400 and problem.value.param == "messages"


def test_the_recorded_second_request_of_mini_swe_agent_continues_its_first(renderer: QwenRenderer) -> None:
    """Its history turns have no content, carry keys of its own, and space their arguments differently."""
    golden = Path(__file__).parents[2] / "wire" / "golden" / "harness" / "mini.json"
    first, second = (exchange["body_trimmed"]["messages"] for exchange in json.loads(golden.read_text()))
    driver = Driver(renderer, random.Random(0))
    said = Turn("assistant", "", "print it", (Call("bash", '{"command":"echo hi-from-fake"}'),))
    _, node = driver.step(first, said)
    placement = driver.forest.place(read_messages(second)[0], (), "")
    assert placement.parent is node
    assert [turn.role for turn in placement.appended] == ["tool"]
