"""The payments of process signals: per step, per rollout, from the verifier, from a plug-in, never more than the cap."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.choices import SignalSource, SignalSpan
from orchestrator.contracts.marks import ParseStatus
from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
from orchestrator.rewards.process import Judged, process_of
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.signals import function, repeated_calls, structured_reasoning, tool_errors
from orchestrator.runtime import plugins
from orchestrator.settings.reward import ProcessSignal

GOOD = RecordedStep(ParsedAction(content="7"))
BAD = RecordedStep(ParsedAction(content="<call", parse=ParseStatus.ILL_FORMED))
NAMES = ["".join(letters) for letters in product("abcdefghij", repeat=3)]
THOUGHTS = [
    f"First {name} is read, then lines of {name} are counted, because the sum {name} needs each of {name} once."
    for name in NAMES
]


def only(name: str, **keys: object) -> RewardSettings:
    return RewardSettings(process={name: ProcessSignal.model_validate(keys)})


def ran(command: str, *, exit_code: int = 0, size: int = 10, agent: str = "main") -> RecordedStep:
    call = ToolCall("bash", f'{{"command": "{command}"}}')
    return RecordedStep(
        ParsedAction(tool_calls=(call,)), (ToolResult(name="bash", exit_code=exit_code, bytes=size),), agent
    )


def thinking(thought: str) -> RecordedStep:
    return RecordedStep(ParsedAction(content="7", reasoning=thought))


def test_a_signal_per_rollout_earns_no_more_in_more_steps() -> None:
    paid = {
        n: process_of([thinking(t) for t in THOUGHTS[:n]], {}, RewardSettings()).by_signal()
        for n in (1, 7, 300)
    }
    assert [parts["structured_reasoning"] for parts in paid.values()] == pytest.approx([0.02] * 3)


def test_thinking_that_is_empty_copied_open_or_in_circles_earns_nothing() -> None:
    thought = THOUGHTS[0]
    assert structured_reasoning(thinking(thought), ()) == 1
    assert structured_reasoning(thinking(thought), [thinking(thought)]) == 0
    for bad in ("", "Hm, yes.", "yes " * 500, f"{thought} </think>", "that makes seven then " * 40):
        assert structured_reasoning(thinking(bad), ()) == 0, bad
    silent = RecordedStep(ParsedAction(reasoning=thought))
    broken = RecordedStep(ParsedAction(content="7", reasoning=thought, parse=ParseStatus.ILL_FORMED))
    assert structured_reasoning(silent, ()) == structured_reasoning(broken, ()) == 0


def test_a_call_that_is_repeated_costs_unless_its_answer_is_new_or_another_agent_made_it() -> None:
    ls = ran("ls")
    assert repeated_calls(ls, [ls]) == repeated_calls(ls, [ls, ran("cat a"), ran("cat b")]) == -1
    assert repeated_calls(ls, []) == repeated_calls(ls, [ran("ls", size=99)]) == 0
    assert repeated_calls(ran("ls", exit_code=2), [ls]) == 0
    assert repeated_calls(ls, [ran("ls", agent="scout")]) == 0
    assert repeated_calls(ran("ls  -l"), [ran("ls -l")]) == -1, "white space apart"
    for spelling in ('{"command":"ls" }', '{"command": "\\u006cs"}', '{ "command" : "ls" }'):
        call = ToolCall("bash", spelling)
        assert repeated_calls(replace(ls, action=ParsedAction(tool_calls=(call,))), [ls]) == -1, spelling
    assert repeated_calls(ls, [ls, *(ran(f"cat {n}") for n in range(8))]) == 0, "eight steps are looked back"


def test_a_call_that_a_reply_makes_many_times_costs_all_times_but_the_first() -> None:
    ls = ran("ls")
    often = RecordedStep(ParsedAction(tool_calls=ls.action.tool_calls * 50), ls.results * 50)
    assert repeated_calls(often, []) == -0.98 and repeated_calls(often, [ls]) == -1
    wide = replace(ls, action=ParsedAction(tool_calls=(ToolCall("bash", '{"command": "ls\u3000-l"}'),)))
    assert repeated_calls(wide, [replace(ran("ls -l"), results=ls.results)]) == -1, "any white space"


def test_a_thought_of_an_earlier_step_in_another_form_earns_nothing() -> None:
    thought = THOUGHTS[0]
    for copied in (thought + " 1", thought.upper(), thought.replace(" ", "  "), f"Hm. {thought}"):
        assert structured_reasoning(thinking(copied), [thinking(thought)]) == 0, copied
    assert structured_reasoning(thinking(f"{thought} {THOUGHTS[1]} {THOUGHTS[2]}"), [thinking(thought)]) == 1


def test_where_tools_are_not_seen_only_the_step_before_counts() -> None:
    unseen, other = replace(ran("make test"), results=()), replace(ran("vi a"), results=())
    assert repeated_calls(unseen, [unseen]) == -1
    assert repeated_calls(unseen, [unseen, other]) == 0


def test_a_step_after_the_last_recorded_tool_call_is_not_a_repetition() -> None:
    polls = replace(ran("cat state"), results=(ToolResult(name="bash", recorded=False),))
    assert repeated_calls(polls, [ran("cat state"), polls, polls]) == tool_errors(polls, ()) == 0


def test_commands_that_fail_cost_where_the_signal_is_on_and_an_exit_code_of_one_is_an_answer() -> None:
    assert tool_errors(ran("grep x a", exit_code=1), ()) == 0
    assert tool_errors(ran("nosuch", exit_code=127), ()) == -1
    assert process_of([ran("nosuch", exit_code=127)], {}, RewardSettings()).steps[0].value == 0, "off"
    found = process_of([ran("nosuch", exit_code=127)], {}, only("tool_errors", weight=0.05))
    assert found.by_signal() == {"tool_errors": -0.05}


@pytest.mark.parametrize("cut", [1, 4, 12])
def test_replies_that_nothing_received_change_nothing_that_the_other_steps_are_paid(cut: int) -> None:
    lost = RecordedStep(ParsedAction(reasoning=THOUGHTS[0], parse=ParseStatus.ILL_FORMED))
    steps = [thinking(THOUGHTS[0]), ran("ls"), thinking(THOUGHTS[1])]
    alone = process_of(steps, {}, RewardSettings())
    found = process_of([*[lost] * cut, *steps], {}, RewardSettings(), marked=range(cut))
    assert found.steps[cut:] == alone.steps and found.by_signal() == alone.by_signal()
    assert {step.value for step in found.steps[:cut]} == {0}
    assert set(dict(found.steps[0].signals).values()) == {0}, "no value is left out"


def test_a_call_that_is_made_again_because_its_reply_was_lost_is_not_a_repetition() -> None:
    found = process_of([ran("ls"), ran("ls"), ran("ls")], {}, RewardSettings(), marked={0})
    assert [step.value for step in found.steps] == [0, 0, -0.01]


def test_other_conversations_with_much_thinking_earn_a_rollout_nothing() -> None:
    aside = [thinking(thought) for thought in THOUGHTS[:9]]
    found = process_of([*aside, GOOD], {}, RewardSettings(), marked=range(9))
    assert found.by_signal() == process_of([GOOD], {}, RewardSettings()).by_signal()


def test_a_list_of_the_verifier_counts_steps_with_a_mark() -> None:
    verifier = only("plan", weight=0.04, source=SignalSource.VERIFIER, per=SignalSpan.ROLLOUT)
    found = process_of([GOOD] * 4, {"plan": [1.0, 0.5, -1.0, 1.0]}, verifier, marked={0, 1})
    assert [step.value for step in found.steps] == [0.01, 0.005, -0.01, 0.01]


def test_a_number_of_the_verifier_is_paid_once_on_the_last_step() -> None:
    found = process_of([GOOD] * 4, {"plan": 0.5}, only("plan", weight=0.1, source=SignalSource.VERIFIER))
    assert [step.value for step in found.steps] == [0, 0, 0, 0.05]
    assert process_of([GOOD], {}, only("plan", weight=0.1, source=SignalSource.VERIFIER)).by_signal() == {}


def test_a_list_of_the_verifier_is_paid_step_by_step() -> None:
    judged: Judged = {"plan": [1.0, 0.0, -1.0, 1.0, 1.0]}
    steps = [GOOD] * 4
    found = process_of(steps, judged, only("plan", weight=0.04, source=SignalSource.VERIFIER))
    assert [step.value for step in found.steps] == [0.04, 0, -0.04, 0.04], "of four steps"
    shared = process_of(
        steps, judged, only("plan", weight=0.04, source=SignalSource.VERIFIER, per=SignalSpan.ROLLOUT)
    )
    assert [step.value for step in shared.steps] == [0.01, 0, -0.01, 0.01]


def test_what_no_setting_names_pays_nothing() -> None:
    assert process_of([GOOD], {"plan": 1.0}, RewardSettings()).steps[0].value == 0


@given(
    st.lists(st.sampled_from([GOOD, BAD, ran("ls"), thinking(THOUGHTS[0])]), max_size=30),
    st.lists(st.floats(-1, 1), max_size=40) | st.floats(-1, 1),
    st.floats(0, 5),
    st.sampled_from(["step", "rollout"]),
    st.floats(0, 0.5),
)
def test_process_never_leaves_its_cap_and_its_parts_add_up(
    steps: list[RecordedStep], scores: float | list[float], weight: float, per: str, cap: float
) -> None:
    signal = ProcessSignal.model_validate({"weight": weight, "per": per, "source": "verifier"})
    default = RewardSettings()
    settings = replace(default, process={**default.process, "plan": signal}, process_cap=cap)
    found = process_of(steps, {"plan": scores}, settings)
    paid = sum(found.alpha * step.value for step in found.steps)
    assert abs(paid) <= cap + 1e-9
    assert sum(found.by_signal().values()) == pytest.approx(paid, abs=1e-9)


def half(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    return 0.5


def raises(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    raise KeyError("no such step")


def huge(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    return float("nan")


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three plug-ins, as if their packages were installed."""
    known = {"half": half, "raises": raises, "huge": huge}
    monkeypatch.setattr(plugins, "names", lambda group: sorted(known) if group == "process_signals" else [])
    monkeypatch.setattr(plugins, "load", lambda group, name: known[name])
    function.cache_clear()
    yield
    function.cache_clear()


@pytest.mark.usefixtures("offered")
def test_a_plug_in_is_paid_like_a_signal_of_ours() -> None:
    assert process_of([GOOD, GOOD], {}, only("half", weight=0.1)).by_signal() == {"half": pytest.approx(0.1)}


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("name", ["raises", "huge"])
def test_a_plug_in_that_fails_costs_its_signal_and_not_the_group(name: str) -> None:
    found = process_of([GOOD], {}, only(name, weight=0.1))
    assert found.steps[0].signals == ((name, None),) and found.steps[0].value == 0
    assert len(found.failed) == 1 and name in found.failed[0]
