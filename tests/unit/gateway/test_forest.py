"""The forest: for any harness and any treatment of its history, the sent state extends the sampled tokens, id by id.

Random conversations are in tests/stateful/test_forest_machine.py; here are the rules one by one.
"""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages.turns import CanonicalCall, Turn, read_messages
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.branches import Difference
from tests.unit.gateway.driver import Driver, Message, user

LOOK = Turn(role="assistant", text="", reasoning="look", calls=(CanonicalCall("bash", '{"command":"ls"}'),))


def place(driver: Driver, *messages: Message, tools: str = "") -> Any:
    return driver.forest.place(read_messages(list(messages))[0], (), tools)


def test_a_changed_beginning_keeps_the_common_prefix_and_says_what_changed(renderer: Renderer) -> None:
    driver = Driver(renderer)
    system: Message = {"role": "system", "content": "be brief"}
    first = driver.step([system, user("oak")], LOOK)
    placement = place(driver, system, user("oak elm"))
    origin = driver.forest.classify(placement, None)
    assert (origin.kind, origin.parent, origin.reason) == (StepKind.REWRITES, first.node, "rewritten")
    assert origin.difference == Difference(near=0, turn=1, field="text", recorded="oak", sent="oak elm")
    shared = origin.keep_len
    assert 0 < shared < first.node.state_len and first.node.full[shared] != placement.ids[shared]
    other = driver.forest.classify(place(driver, user("title?")), None)
    assert (other.kind, other.reason) == (StepKind.ROOT, "new_conversation")
    assert other.difference == Difference(near=0, turn=0, field="role", recorded="system", sent="user")


def test_a_rewritten_history_of_calls_with_numbers_is_placed_without_comparing_each_with_each_step(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, history, calls = Driver(renderer), list[Message](), 20
    for number in range(calls):
        arguments = json.dumps({"command": f"x = {number}.5", "n": "1.0"}, separators=(",", ":"))
        says = Turn(role="assistant", text="", calls=(CanonicalCall("bash", arguments),))
        clock: Message = {"role": "system", "content": f"it is {number}"}
        stepped = driver.step([clock, user("oak?"), *history], says)
        result = {"role": "tool", "tool_call_id": stepped.message["tool_calls"][0]["id"], "content": "ok"}
        history += [stepped.message, result]
    sent = read_messages([{"role": "system", "content": "it is late"}, user("oak?"), *history])[0]
    loads, loaded = json.loads, list[str]()

    def counted(text: str, **options: Any) -> Any:
        loaded.append(text)
        return loads(text, **options)

    monkeypatch.setattr("orchestrator.gateway.messages.turns.json.loads", counted)
    placement = driver.forest.place(sent, (), "")
    driver.forest.classify(placement, None)
    assert calls <= len(loaded) <= 4 * calls
    monkeypatch.undo()
    for node in driver.forest.nodes:
        assert node.action.tobytes() in placement.ids.tobytes(), "sampled ids are used again"


def conversation(renderer: Renderer) -> tuple[Driver, list[Message]]:
    """oak? → a call → its result → an answer."""
    driver = Driver(renderer)
    first = driver.step([user("oak?")], LOOK)
    history = [user("oak?"), first.message, {"role": "tool", "tool_call_id": "x", "content": "two oaks"}]
    second = driver.step(history, Turn(role="assistant", text="Two.", reasoning="I see."))
    return driver, [*history, second.message]


@pytest.mark.parametrize(
    ("at", "change", "difference"),
    [
        (
            2,
            {"content": "two elms"},
            Difference(near=1, turn=2, field="text", recorded="two oaks", sent="two elms"),
        ),
        (3, {"content": "Three."}, Difference(near=1, turn=3, field="text", recorded="Two.", sent="Three.")),
        (
            3,
            {"reasoning_content": "I guess."},
            Difference(near=1, turn=3, field="reasoning", recorded="I see.", sent="I guess."),
        ),
        (
            1,
            {"tool_calls": []},
            Difference(near=0, turn=1, field="calls", recorded='bash{"command":"ls"}', sent=""),
        ),
    ],
    ids=["a tool result", "an answer", "its reasoning", "a call that is gone"],
)
def test_every_branch_says_where_it_first_differs(
    renderer: Renderer, at: int, change: Message, difference: Difference
) -> None:
    driver, history = conversation(renderer)
    changed = [*history]
    changed[at] = {**changed[at], **change}
    origin = driver.forest.classify(place(driver, *changed, user("and elms?")), None)
    assert (origin.reason, origin.difference) == ("rewritten", difference)


def test_a_conversation_under_other_tools_says_so(renderer: Renderer) -> None:
    driver, history = conversation(renderer)
    origin = driver.forest.classify(place(driver, *history, user("go on"), tools="other"), None)
    assert origin.reason == "tools" and origin.difference == Difference(
        near=1, turn=0, field="tools", recorded="", sent="other"
    )


def test_what_goes_on_after_a_cut_off_answer_is_flagged(renderer: Renderer) -> None:
    driver = Driver(renderer)
    turn = Turn(role="assistant", text="Two oaks and an elm.", reasoning="I count again.")
    first = driver.step([user("oak?")], turn, cut=len(renderer.action(turn)) - 2)
    onward = driver.step([user("oak?"), first.message, user("go on")], turn)
    assert (onward.origin.kind, onward.origin.reason) == (StepKind.CONTINUES, "closed")
    again = driver.step([user("oak?"), first.message, user("go on")], turn)
    assert again.origin.reason == "sibling"


def test_the_scaffolds_own_word_for_a_rewrite_is_kept_with_the_difference(renderer: Renderer) -> None:
    driver, history = conversation(renderer)
    origin = driver.forest.classify(place(driver, *history[:1], history[3], user("go on")), "window")
    assert origin.reason == "window" and origin.difference is not None


def test_reasoning_that_is_replayed_must_match_and_missing_reasoning_matches_all(renderer: Renderer) -> None:
    driver = Driver(renderer)
    first = driver.step([user("oak")], Turn(role="assistant", text="yes", reasoning="because"))
    bare = driver.step([user("elm")], Turn(role="assistant", text="yes", reasoning=None))
    other = {**first.message, "reasoning_content": "for no reason"}
    without = {key: value for key, value in first.message.items() if key != "reasoning_content"}

    def parent(question: str, reply: Message) -> Any:
        return place(driver, user(question), reply, user("go on")).parent

    assert parent("oak", first.message) is first.node and parent("oak", without) is first.node
    assert parent("oak", other) is None
    assert parent("elm", bare.message) is bare.node
    assert parent("elm", other) is None, "reasoning that was never given does not match none"


def test_equal_replies_are_distinguished_by_their_tool_call_ids(renderer: Renderer) -> None:
    driver = Driver(renderer)
    for stepped in (driver.step([user("oak")], LOOK), driver.step([user("oak")], LOOK)):
        history = [user("oak"), stepped.message, {"role": "tool", "content": "a"}]
        assert place(driver, *history).parent is stepped.node


def test_a_repeated_body_is_the_same_state_again_whatever_came_between(renderer: Renderer) -> None:
    driver = Driver(renderer)
    plain = Turn(role="assistant", text="yes", reasoning=None)
    first = driver.step([user("oak")], plain)
    driver.step([user("oak"), first.message, user("go on")], plain)
    driver.step([user("oak")], plain)  # an equal answer, from another step
    again = driver.step([user("oak"), first.message, user("go on")], plain)
    assert again.node.parent is first.node and again.origin.reason == "sibling"


def test_a_turn_that_was_sampled_elsewhere_stands_in_a_rewritten_history_as_it_was_sampled(
    renderer: Renderer,
) -> None:
    driver, history = conversation(renderer)
    placement = place(driver, user("ash?"), *history[1:], user("go on"))
    assert placement.parent is None
    text, action = " ".join(map(str, placement.ids)), driver.forest.nodes[0].action
    assert " ".join(map(str, action.tolist())) in text


def test_an_example_that_reads_like_another_conversations_reply_does_not_get_its_reasoning(
    renderer: Renderer,
) -> None:
    driver = Driver(renderer)
    driver.step(
        [user("how many oaks?")],
        Turn(role="assistant", text="Two.", reasoning="A secret of the other conversation."),
    )
    example: Message = {"role": "assistant", "content": "Two.", "tool_calls": []}
    placement = place(driver, user("how many eyes?"), example, user("how many hands?"))
    text = renderer.decode(placement.ids.tolist())
    assert "Two." in text and "secret" not in text


def test_a_reply_whose_reasoning_a_program_left_out_keeps_it_where_its_neighbours_are_its_own(
    renderer: Renderer,
) -> None:
    driver, opening = Driver(renderer), user("how many oaks?")
    system: Message = {"role": "system", "content": "It is noon."}
    first = driver.step([system, opening], Turn(role="assistant", text="Two.", reasoning="I count."))
    bare = {"role": "assistant", "content": "Two.", "tool_calls": []}
    onward = driver.step(
        [system, opening, bare, user("and elms?")],
        Turn(role="assistant", text="One.", reasoning="I count on."),
    )
    assert onward.node.parent is first.node
    later: Message = {"role": "system", "content": "It is one."}
    prompt = renderer.decode(place(driver, later, opening, bare, user("why?")).ids.tolist())
    assert "I count." in prompt, "it answers the same question"
    prompt = renderer.decode(place(driver, later, bare, user("and elms?")).ids.tolist())
    assert "I count." in prompt, "it follows the same messages"
    prompt = renderer.decode(place(driver, later, user("eyes?"), bare, user("why?")).ids.tolist())
    assert "I count." not in prompt


@pytest.mark.parametrize(
    ("replayed", "same"),
    [
        ('{"a":1,"b":1e21,"c":"1.0","d":[0,2.5]}', True),
        ('{"a":1,"b":1e21,"c":"1","d":[0,2.5]}', False),
        ('{"a":true,"b":1e21,"c":"1.0","d":[0,2.5]}', False),
        ('{"a":1,"b":1e21,"c":"1.0","d":[0,2]}', False),
    ],
)
def test_numbers_that_javascript_spells_otherwise_are_the_same_numbers(replayed: str, same: bool) -> None:
    spoken = Turn(
        role="assistant",
        text="",
        reasoning=None,
        calls=(CanonicalCall("f", '{"a":1.0,"b":1e+21,"c":"1.0","d":[-0.0,2.5]}'),),
    )
    call = {"function": {"name": "f", "arguments": replayed}}
    (turn,), _ = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert spoken.same(turn) is same


def test_traps_of_templates_are_folded_at_the_boundary() -> None:
    turns, left_out = read_messages(
        [
            {"role": "developer", "content": "rules"},
            {"role": "tool", "content": "an orphan"},
            {"role": "system", "content": "later rules"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "server_tool_use", "id": "x"},
                    {"type": "text", "text": "b"},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}],
            },
            {"role": "tool", "content": "one"},
        ]
    )
    assert [turn.role for turn in turns] == ["system", "user", "user", "user", "assistant", "tool"]
    assert left_out == 1 and turns[3].text == "ab"
    assert turns[4].text == "" and turns[4].calls[0].mapping() == {"input": "not json"}


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "x",
        [1],
        [{"role": "user", "content": 3}],
        [{"role": "wizard"}],
        [{"role": "assistant", "tool_calls": [{}]}],
        [{"role": "assistant", "tool_calls": 3}],
    ],
)
def test_malformed_messages_get_one_clear_sentence(messages: Any) -> None:
    with pytest.raises(Problem) as problem:
        read_messages(messages)
    assert problem.value.status == 400 and problem.value.param == "messages"


def test_the_recorded_second_request_of_mini_swe_agent_continues_its_first(renderer: Renderer) -> None:
    """Its history turns have no content, carry keys of its own, and space their arguments differently."""
    golden = Path(__file__).parents[2] / "wire" / "golden" / "harness" / "mini.json"
    first, second = (exchange["body_trimmed"]["messages"] for exchange in json.loads(golden.read_text()))
    driver = Driver(renderer)
    spoken = Turn(
        role="assistant",
        text="",
        reasoning="print it",
        calls=(CanonicalCall("bash", '{"command":"echo hi-from-fake"}'),),
    )
    stepped = driver.step(first, spoken)
    placement = driver.forest.place(read_messages(second)[0], (), "")
    assert placement.parent is stepped.node
    assert [turn.role for turn in placement.appended] == ["tool"]


def test_a_repeated_question_is_a_sibling_whatever_else_went_on_from_there(
    renderer: Renderer,
) -> None:
    driver, history = conversation(renderer)
    question = [*history, user("and elms?")]
    driver.step(question, Turn(role="assistant", text="None."))
    invented: Message = {"role": "assistant", "content": "Many.", "tool_calls": []}
    driver.step([*question, invented, user("go on")], Turn(role="assistant", text="Well."))
    again = driver.step(question, Turn(role="assistant", text="Ten."))
    assert (again.origin.reason, again.origin.difference) == ("sibling", None)


def test_of_steps_that_a_request_cannot_tell_apart_the_newest_goes_on(renderer: Renderer) -> None:
    driver, plain = Driver(renderer), Turn(role="assistant", text="yes", reasoning=None)
    older = driver.step([user("oak")], plain)
    newer = driver.step([user("oak")], plain)
    onward = driver.step([user("oak"), older.message, user("go on")], plain)
    assert onward.node.parent is newer.node
    assert onward.origin.reason is None, "its state is a plain continuation of either"
    assert older.node.full.tolist() == newer.node.full.tolist()


def test_the_steps_of_an_ended_session_are_freed_at_once_without_a_garbage_collection(
    renderer: Renderer,
) -> None:
    gc.disable()
    try:
        driver, history = conversation(renderer)
        driver.step([*history, user("elm?")], LOOK)
        driver.step([user("other")], LOOK)
        assert len(driver.forest.nodes) > 3
        held = [weakref.ref(node.buffer) for node in driver.forest.nodes]
        del driver
        assert not [buffer for buffer in held if buffer() is not None]
    finally:
        gc.enable()
