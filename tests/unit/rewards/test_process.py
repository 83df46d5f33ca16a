"""Process signals, one by one."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.marks import ParseStatus
from orchestrator.rewards import signals
from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall
from orchestrator.rewards.signals import SIGNALS
from orchestrator.settings.reward import PROCESS

ENGLISH = "We list the files first and count the lines of each one, then add the numbers."
CHINESE = "我们先列出所有文件，然后数一下每个文件有多少行，最后把数字加起来。"
GERMAN = "Für jede Datei zählen wir zuerst die Zeilen und addieren danach die Größen."
RUSSIAN = "Сначала посчитаем строки каждого файла, а потом сложим полученные числа."


def ill_formed_tool_call(action: ParsedAction) -> float:
    return signals.ill_formed_tool_call(RecordedStep(action), ())


def language_mixing(action: ParsedAction) -> float:
    return signals.language_mixing(RecordedStep(action), ())


def reasoning_structure(action: ParsedAction) -> float:
    return signals.reasoning_structure(RecordedStep(action), ())


def call(arguments: str, name: str = "bash") -> ToolCall:
    return ToolCall(name, arguments)


@pytest.mark.parametrize(
    ("action", "penalty"),
    [
        (ParsedAction(content="7"), 0.0),
        (ParsedAction(tool_calls=(call('{"command": "ls"}'),)), 0.0),
        (ParsedAction(tool_calls=(call("{}"), call("{}"))), 0.0),
        (ParsedAction(content="<tool_call>{", parse=ParseStatus.ILL_FORMED), -1.0),
        (ParsedAction(tool_calls=(call("ls -l"),)), -1.0),
        (ParsedAction(tool_calls=(call('["ls"]'),)), -1.0),
        (ParsedAction(tool_calls=(call("{}"), call("{}", name=""), call("{}"), call("{}"))), -0.25),
        (ParsedAction(tool_calls=(call("[" * 100_000),)), -1.0),
    ],
)
def test_an_ill_formed_tool_call_costs_its_share_of_the_calls(action: ParsedAction, penalty: float) -> None:
    assert ill_formed_tool_call(action) == penalty


@pytest.mark.parametrize(
    "text",
    [ENGLISH, CHINESE, GERMAN, RUSSIAN, "", "λ = 0.5, so 2·λ + α ≥ 1 holds for every value that we try"],
)
def test_text_in_one_language_mixes_nothing(text: str) -> None:
    assert language_mixing(ParsedAction(content=text, reasoning=text)) == 0


def test_technical_terms_in_chinese_text_and_code_in_any_script_do_not_count_as_mixing() -> None:
    assert (
        language_mixing(ParsedAction(content="我用 Python 和 bash 写了一个脚本，它会统计 CSV 文件的行数。"))
        == 0
    )
    assert language_mixing(ParsedAction(content=f"{ENGLISH}\n```\nprint('{CHINESE}')\n```")) == 0
    assert language_mixing(ParsedAction(content=f"{ENGLISH} The heading is `总计总计总计`.")) == 0


def test_reasoning_and_content_may_each_have_their_own_language() -> None:
    assert language_mixing(ParsedAction(reasoning=ENGLISH, content=CHINESE)) == 0


def test_half_a_text_in_another_script_costs_most_and_a_word_costs_little() -> None:
    half = language_mixing(ParsedAction(reasoning=f"{ENGLISH} {RUSSIAN}"))
    word = language_mixing(ParsedAction(reasoning=f"{ENGLISH} {ENGLISH} {ENGLISH} 然后数一下"))
    assert -1 <= half < -0.6
    assert half < word < 0
    assert language_mixing(ParsedAction(reasoning=f"{ENGLISH} {ENGLISH} 数")) == 0, "5 % is tolerated"


def test_the_worse_of_reasoning_and_content_counts() -> None:
    mixed = f"{ENGLISH} {RUSSIAN}"
    assert language_mixing(ParsedAction(content=mixed)) == language_mixing(
        ParsedAction(reasoning=ENGLISH, content=mixed)
    )


@pytest.mark.parametrize(
    ("action", "penalty"),
    [
        (ParsedAction(content="7"), 0.0),
        (ParsedAction(tool_calls=(call("{}"),)), 0.0),
        (ParsedAction(), -1.0),
        (ParsedAction(content=" \n"), -1.0),
        (ParsedAction(reasoning="that makes 7", content="</think>7"), -1.0),
        (ParsedAction(reasoning="<think>that makes 7", content="7"), -1.0),
        (ParsedAction(reasoning='<tool_call>{"name": "bash"}', content="7"), -1.0),
        (ParsedAction(content="write `<think>` before the plan"), 0.0),
        (ParsedAction(reasoning="a\nb\nc\na\nb\nc", content="7"), -0.5),
        (ParsedAction(reasoning="a\na\na\na\na", content="7"), 0.0),
        (ParsedAction(reasoning="a\nb\nc\nd\ne\ne", content="7"), 0.0),
    ],
)
def test_reasoning_is_separate_and_does_not_go_in_circles(action: ParsedAction, penalty: float) -> None:
    assert reasoning_structure(action) == penalty


@pytest.mark.parametrize(
    ("content", "penalty"),
    [
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', 0.0),
        ('<invoke name="bash"><parameter name="command">ls</parameter></invoke>', 0.0),
        ("</think><tool_call>ls</tool_call>", -1.0),
        ("<tool_call>ls</tool_call><tool_response>3 files</tool_response>", -1.0),
    ],
)
def test_markers_of_calls_are_a_protocol_of_the_scaffold_where_no_tools_were_offered(
    content: str, penalty: float
) -> None:
    assert reasoning_structure(ParsedAction(content=content)) == -1.0
    assert reasoning_structure(ParsedAction(content=content, shows_tools=False)) == penalty
    forbidden = ParsedAction(content=content, parse=ParseStatus.ILL_FORMED, shows_tools=False)
    assert reasoning_structure(forbidden) == -1.0


def test_a_recorded_reply_is_read_in_both_shapes_of_a_tool_call() -> None:
    nested = {
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "bash", "arguments": '{"a": 1}'}}],
    }
    flat = {"reasoning": "hm", "tool_calls": [{"name": "bash", "arguments": {"a": 1}}]}
    assert ParsedAction.from_reply(nested, ParseStatus.OK).tool_calls == (call('{"a": 1}'),)
    assert ParsedAction.from_reply(flat, ParseStatus.OK) == ParsedAction(
        content="", reasoning="hm", tool_calls=(call('{"a": 1}'),), parse=ParseStatus.OK
    )
    assert ParsedAction.from_reply({}, ParseStatus.ILL_FORMED) == ParsedAction(parse=ParseStatus.ILL_FORMED)


@given(
    st.builds(
        ParsedAction,
        content=st.text(max_size=80),
        reasoning=st.text(max_size=80),
        tool_calls=st.lists(st.builds(ToolCall, st.text(max_size=4), st.text(max_size=12)), max_size=3).map(
            tuple
        ),
        parse=st.sampled_from(["ok", "ill_formed"]),
    )
)
def test_every_signal_of_any_text_lies_between_minus_one_and_one(action: ParsedAction) -> None:
    step = RecordedStep(action)
    for name, signal in SIGNALS.items():
        assert -1 <= signal(step, [step, step]) <= (name == "structured_reasoning"), name


@pytest.mark.parametrize(
    "piece", ["<think ", "</tool_call ", "`", "```", "<|im_start", "a b ", "然", '{"a":']
)
def test_no_text_of_a_policy_holds_up_those_who_pay_for_it(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    step = RecordedStep(ParsedAction(content=text, reasoning=text, tool_calls=(call(text),)))
    began = time.process_time()
    for signal in SIGNALS.values():
        signal(step, [step])
    assert time.process_time() - began < 2.0  # work that grows with the square of the text takes about ten


def test_the_guide_has_a_row_for_each_signal_with_its_default() -> None:
    guide = (Path(__file__).parents[3] / "ops/guides/rewards.md").read_text(encoding="utf-8")
    _, _, table = guide.partition("| signal | default |")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table.partition("\n\n")[0], re.M))
    paid = {name: f"{PROCESS[name].weight:g} per {PROCESS[name].per}" for name in PROCESS}
    assert rows == {name: paid.get(name, "off") for name in SIGNALS}, (
        "ops/guides/rewards.md, Process: write the rows of SIGNALS with the defaults of orchestrator/settings/reward.py"
    )
