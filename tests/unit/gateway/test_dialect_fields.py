"""Every documented field of the three wires: honoured, the run's, without effect, left out, or refused by name."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types.chat import completion_create_params
from openai.types.responses import input_token_count_params, response_create_params
from scaffolds.base import Wire as Wired

from orchestrator.gateway.http.bodies import DIALECTS
from orchestrator.gateway.http.dialects.fields import FIELDS, Treatment, described
from orchestrator.gateway.http.dialects.native import NativeDialect
from orchestrator.gateway.messages.requests import CallRule, CompletionRequest
from orchestrator.gateway.problems import Problem
from orchestrator.scaffold_check.seen import _ENDINGS, wire_of
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, COMMAND, RESPONSES, Wire
from tests.unit.gateway.dialect_rig import WIRES as RIG

GUIDE = Path(__file__).parents[3] / "ops/guides/wires.md"
WIRES = {wire.dialect.name: wire for wire in (CHAT, RESPONSES, ANTHROPIC)}
DOCUMENTED: dict[str, list[Any]] = {
    "chat": [completion_create_params.CompletionCreateParamsBase],
    "responses": [
        response_create_params.ResponseCreateParamsBase,
        input_token_count_params.InputTokenCountParams,
    ],
    "anthropic": [
        message_create_params.MessageCreateParamsBase,
        message_count_tokens_params.MessageCountTokensParams,
        beta_params.MessageCreateParamsBase,
    ],
}
# A value that requests something, for each field that is refused unless it requests nothing.
ASKS: dict[str, Any] = {
    "n": 2, "logprobs": True, "top_logprobs": 3, "logit_bias": {"50256": -100}, "modalities": ["text", "audio"], "audio": {"voice": "x"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, "add_generation_prompt": False,
    "text.format": {"type": "json_schema", "name": "x", "schema": {}}, "output_config.format": {"type": "json_schema", "schema": {}},
    "best_of": 2, "min_tokens": 3, "min_new_tokens": 3, "truncation": "auto", "conversation": "conv_1", "prompt": {"id": "pmpt_1"},
    "separate_reasoning": False, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "stop_token_ids": [2], "prompt_logprobs": 1, "documents": [{"text": "x"}],
}  # fmt: skip
FLAGS = [
    "background",
    "continue_final_message",
    "echo",
    "ignore_eos",
    "include_stop_str_in_output",
    "use_beam_search",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "no_stop_trim",
    "return_hidden_states",
    "deferred",
    "safe_prompt",
]


LOOK = {"type": "function", "function": {"name": "look"}}
BASH = [{"type": "function", "name": "bash"}, {"type": "web_search"}]
MEANINGLESS = [
    "sometimes",
    3,
    [],
    {"type": "file_search"},
    {"type": "function", "name": "x"},
    {"type": "tool", "name": "x"},
]


def body(wire: str, **more: Any) -> dict[str, Any]:
    mine = {"responses": {"input", "max_output_tokens"}}.get(wire, {"messages", "max_tokens"})
    given = {
        "messages": [{"role": "user", "content": "x"}],
        "input": "x",
        "max_tokens": 9,
        "max_output_tokens": 9,
    }
    given |= {name: value for name, value in more.items() if name in ("messages", "input")}
    more = {name: value for name, value in more.items() if name not in ("messages", "input")}
    return {**{name: value for name, value in given.items() if name in mine}, **more}


def read(wire: str, **more: Any) -> CompletionRequest:
    return WIRES[wire].dialect.read(body(wire, **more), {}).request


def nested(name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return {outer: {inner: value}} if inner else {name: value}


def refused(name: str) -> Any:
    return ASKS.get(name, True if name in FLAGS else "x")


@pytest.mark.parametrize("wire", WIRES)
def test_every_field_that_the_official_packages_document_is_known(wire: str) -> None:
    documented = set().union(*(get_type_hints(params) for params in DOCUMENTED[wire]))
    assert documented - set(FIELDS[wire]) == set()


CASES = [
    (wire, name, field)
    for wire, name, field in itertools.chain.from_iterable(
        [(wire, name, field) for name, field in FIELDS[wire].items()] for wire in WIRES
    )
    if field.treatment is Treatment.REFUSED
]


@pytest.mark.parametrize(("wire", "name", "field"), CASES, ids=[f"{wire}-{name}" for wire, name, _ in CASES])
def test_what_cannot_be_honoured_is_refused_by_name_and_what_asks_for_nothing_is_taken(
    wire: str, name: str, field: Any
) -> None:
    with pytest.raises(Problem, match=name.replace(".", r"\.")) as problem:
        read(wire, **nested(name, refused(name)))
    assert (problem.value.status, problem.value.param) == (400, name) and "\n" not in problem.value.message
    for value in (None, *field.neutral):
        assert read(wire, **nested(name, value)).turns


@pytest.mark.parametrize("wire", WIRES)
def test_settings_of_the_run_labels_and_hints_are_taken(wire: str) -> None:
    plain = read(wire)
    for name, field in FIELDS[wire].items():
        if field.treatment in (Treatment.RUN, Treatment.TAKEN):
            request = read(wire, **nested(name, 1.5))
            assert (request.turns, request.rule, request.left_out) == (plain.turns, plain.rule, 0), name
        if field.treatment is Treatment.STRIPPED:
            assert read(wire, **{name: [{"type": "url"}]}).left_out == 1


def test_every_wire_is_declared_documented_and_in_the_rig_of_these_tests() -> None:
    names = {dialect.name for dialect in DIALECTS}
    places = {
        "Wire of agents/scaffolds/base.py": set(get_args(Wired)),
        "_ENDINGS of orchestrator/scaffold_check/seen.py": set(_ENDINGS.values()),
        "FIELDS of orchestrator/gateway/http/dialects/fields.py": set(FIELDS),
        "WIRES of tests/unit/gateway/dialect_rig.py": {wire.dialect.name for wire in RIG} | {"native"},
        "DOCUMENTED above": {*DOCUMENTED, "native"},
    }
    assert {place: names ^ known for place, known in places.items() if names != known} == {}
    guide = GUIDE.read_text(encoding="utf-8")
    for dialect in DIALECTS:
        assert all(wire_of(f"/s/token{path}") == dialect.name for path in dialect.paths), (
            f"{dialect.name}: write the end of its paths into _ENDINGS of orchestrator/scaffold_check/seen.py"
        )
        assert dialect.name == "native" or all(f"`{path}`" in guide for path in dialect.paths), (
            f"{dialect.name}: ops/guides/wires.md lacks its routes {', '.join(dialect.paths)}"
        )


@pytest.mark.parametrize("wire", WIRES)
def test_the_guide_has_a_row_for_every_field(wire: str) -> None:
    guide = GUIDE.read_text()
    for name, treatment, why, names in described():
        if name == wire:
            row = f"| {', '.join(f'`{one}`' for one in names)} | {treatment.value} | {why} |"
            assert row in guide, f"ops/guides/wires.md lacks: {row}"


@pytest.mark.parametrize("wire", WIRES)
def test_a_field_of_another_wire_is_refused_or_listed_and_never_dropped(wire: str) -> None:
    for other in WIRES.keys() - {wire}:
        for name, field in FIELDS[other].items():
            if name in FIELDS[wire] or name.partition(".")[0] in FIELDS[wire]:
                continue
            value = nested(name, refused(name) if field.treatment is Treatment.REFUSED else {"a": 1})
            if field.treatment in (Treatment.RUN, Treatment.TAKEN) and "." not in name:
                assert read(wire, **value).turns, "the guide: without effect on its own wire, so here as well"
                continue
            with pytest.raises(Problem, match=f"^{name.partition('.')[0]}.* is not supported: ") as problem:
                WIRES[wire].dialect.read({**body(wire), **value}, {})
            assert "None" not in problem.value.message


def tools_of(wire: Wire, *names: str) -> list[dict[str, Any]]:
    shapes: dict[str, Callable[[str], dict[str, Any]]] = {
        "chat": lambda name: {"type": "function", "function": {"name": name, "parameters": COMMAND}},
        "responses": lambda name: {"type": "function", "name": name, "parameters": COMMAND},
        "anthropic": lambda name: {"name": name, "input_schema": COMMAND},
    }
    return [shapes[wire.dialect.name](name) for name in names]


@pytest.mark.parametrize(
    ("wire", "requested", "rule"),
    [
        ("chat", {"tool_choice": "auto"}, CallRule()),
        ("chat", {"tool_choice": "none"}, CallRule(most=0)),
        ("chat", {"tool_choice": "required"}, CallRule(required=True)),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "bash"}}}, CallRule(names=("bash",), required=True)),
        ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [LOOK]}}}, CallRule(names=("look",))),
        ("chat", {"parallel_tool_calls": False}, CallRule(most=1)),
        ("chat", {"parallel_tool_calls": False, "tool_choice": "none"}, CallRule(most=0)),
        ("responses", {"tool_choice": {"type": "function", "name": "look"}}, CallRule(names=("look",), required=True)),
        ("responses", {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": BASH}}, CallRule(names=("bash",), required=True)),
        ("responses", {"parallel_tool_calls": False, "tool_choice": "required"}, CallRule(most=1, required=True)),
        ("anthropic", {"tool_choice": {"type": "any"}}, CallRule(required=True)),
        ("anthropic", {"tool_choice": {"type": "tool", "name": "bash"}}, CallRule(names=("bash",), required=True)),
        ("anthropic", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, CallRule(most=1)),
        ("anthropic", {"tool_choice": {"type": "none"}}, CallRule(most=0)),
    ],
)  # fmt: skip
def test_a_choice_of_tools_is_a_rule_for_the_reply(
    wire: str, requested: dict[str, Any], rule: CallRule
) -> None:
    assert read(wire, tools=tools_of(WIRES[wire], "bash", "look"), **requested).rule == rule


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("choice", [*MEANINGLESS, {"type": "allowed_tools"}])
def test_a_choice_that_means_no_tool_of_the_request_is_refused(wire: str, choice: Any) -> None:
    with pytest.raises(Problem, match="tool_choice") as problem:
        read(wire, tools=tools_of(WIRES[wire], "bash"), tool_choice=choice)
    assert problem.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("rule", "kept", "broken"),
    [
        (CallRule(), [[], ["a", "b"]], []),
        (CallRule(most=1), [[], ["a"]], [["a", "a"]]),
        (CallRule(names=("a",)), [[], ["a", "a"]], [["b"], ["a", "b"]]),
        (CallRule(names=("a",), required=True), [["a"]], [[], ["b"]]),
        (CallRule(required=True), [["b"]], [[]]),
    ],
)
def test_a_rule_says_which_replies_keep_it(rule: CallRule, kept: list[Any], broken: list[Any]) -> None:
    assert [rule.holds(one) for one in kept + broken] == [True] * len(kept) + [False] * len(broken)


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_that_ends_with_the_assistant_is_not_answered_with_a_second_turn(wire: str) -> None:
    opening = {"role": "assistant", "content": "The number of oaks is"}
    ending = read(
        wire,
        messages=[{"role": "user", "content": "oaks?"}, opening],
        input=[{"role": "user", "content": "oaks?"}, opening],
    )
    with pytest.raises(Problem, match=r"the last message of (messages|input) is the assistant's") as problem:
        ending.check_answerable()
    assert (problem.value.status, problem.value.param) == (
        400,
        "input" if wire == "responses" else "messages",
    )
    read(wire).check_answerable()


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_a_request_that_ends_with_a_message_of_the_system_is_answered(wire: str) -> None:
    ending = [{"role": "system", "content": "Count the oaks."}]
    for messages in (ending, [{"role": "user", "content": "oaks?"}, *ending]):
        read(wire, messages=messages, input=messages).check_answerable()


@pytest.mark.parametrize(
    ("wire", "name", "value"),
    [
        ("anthropic", "n", 2),
        ("anthropic", "logprobs", True),
        ("anthropic", "response_format", {"type": "json_object"}),
        ("responses", "n", 2),
        ("responses", "system", "be brief"),
        ("chat", "instructions", "be brief"),
        ("chat", "truncation", "auto"),
        ("chat", "stop_sequences", ["\n"]),
        ("anthropic", "max_output_tokens", 9),
        ("responses", "max_tokens", 9),
        ("responses", "max_completion_tokens", 9),
        ("anthropic", "max_completion_tokens", 9),
        ("anthropic", "stop", ["\n"]),
        ("anthropic", "parallel_tool_calls", True),
        ("anthropic", "functions", [{"name": "f"}]),
        ("responses", "function_call", "none"),
        ("chat", "previous_response_id", "resp_1"),
        ("chat", "mcp_servers", [{"type": "url"}]),
        ("responses", "web_search_options", {"a": 1}),
    ],
)
def test_what_another_wire_refuses_or_reads_is_refused_where_it_is_not_documented(
    wire: str, name: str, value: object
) -> None:
    with pytest.raises(Problem, match=f"^{name} is not supported: ") as refused:
        read(wire, **{name: value})
    assert refused.value.status == 400


@pytest.mark.parametrize("wire", WIRES)
def test_a_conversation_in_another_wires_field_is_refused_and_the_own_field_is_named(wire: str) -> None:
    own, other = ("input", "messages") if wire == "responses" else ("messages", "input")
    with pytest.raises(Problem, match=f"^{other} is not supported: .*use {own} on this one"):
        WIRES[wire].dialect.read({**body(wire), other: [{"role": "user", "content": "y"}]}, {})


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("stream", "yes", "true or false"),
        ("stream", 1, "true or false"),
        ("stream_options", 5, "an object"),
        ("text", 5, "an object"),
        ("output_config", [], "an object"),
        ("model", {"a": 1}, "a string"),
        ("parallel_tool_calls", "false", "true or false"),
        ("parallel_tool_calls", 0, "true or false"),
        ("functions", {}, "a list"),
        ("include", "reasoning.encrypted_content", "a list"),
        ("system", {}, "a string or a list"),
        ("system", 0, "a string or a list"),
    ],
)
def test_a_value_of_another_kind_is_refused_where_it_decides_how_a_reply_is_written(
    wire: str, name: str, value: object, sentence: str
) -> None:
    if name not in FIELDS[wire] or FIELDS[wire][name].treatment is not Treatment.HONOURED:
        return
    with pytest.raises(Problem, match=f"^{name} must be {sentence}"):
        read(wire, **{name: value})
    assert read(wire, **{name: None})


@pytest.mark.parametrize(
    ("wire", "name", "value", "sentence"),
    [
        ("chat", "stream_options.include_usage", "yes", "true or false"),
        ("anthropic", "tool_choice.disable_parallel_tool_use", "true", "true or false"),
        ("anthropic", "thinking.type", "sometimes", "one of enabled, adaptive, disabled"),
        ("anthropic", "thinking.type", ["enabled"], "one of enabled, adaptive, disabled"),
        ("anthropic", "thinking.display", "loud", "one of summarized, updates, omitted"),
    ],
)
def test_a_value_inside_a_field_that_means_nothing_is_refused(
    wire: str, name: str, value: object, sentence: str
) -> None:
    with pytest.raises(Problem, match=f"^{name} must be {sentence}") as refused:
        read(wire, **nested(name, value))
    assert (refused.value.status, refused.value.param) == (400, name)


def test_what_a_response_cannot_include_is_refused_by_its_name() -> None:
    for one in ("message.output_text.logprobs", "everything", 3, {"a": 1}):
        with pytest.raises(Problem, match=r"^include: ") as refused:
            read("responses", include=["web_search_call.results", one])
        assert refused.value.param == "include"
    assert read("responses", include=["web_search_call.results", "reasoning.encrypted_content"]).turns


def test_whether_to_think_is_a_switch_of_anthropics_wire_and_a_hint_of_engines_on_chat() -> None:
    with pytest.raises(Problem, match=r"^thinking must be an object"):
        read("anthropic", thinking="enabled")
    for name, value in (
        ("enable_thinking", False),
        ("reasoning", {"exclude": True}),
        ("thinking", {"type": "disabled"}),
    ):
        assert read("chat", **{name: value}).turns == read("chat").turns


def native(**more: Any) -> CompletionRequest:
    return NativeDialect().read({"messages": [{"role": "user", "content": "x"}], **more}, {}).request


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"temperature": 0.5}, "^temperature is not a field of this route: it takes agent, call, messages"),
        ({"stream": True}, "^stream is not a field"),
        ({"n": 2}, "^n is not a field"),
        ({"tool_choice": "none"}, "^tool_choice is not a field"),
        ({"parallel_tool_calls": False}, "^parallel_tool_calls is not a field"),
        ({"agent": 5}, "^agent must be a string$"),
        ({"replace_reason": 7}, "^replace_reason must be a string$"),
        ({"call": "first"}, "^call must be an integer$"),
    ],
)
def test_the_native_route_refuses_fields_that_it_does_not_have_and_values_of_other_kinds(
    more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Problem, match=sentence) as problem:
        native(**more)
    assert (problem.value.status, problem.value.param) == (400, next(iter(more)))


@pytest.mark.parametrize("name", ["x" * 100_000, "a\n\0b", "\U0001f30d" * 50_000])
def test_an_unknown_field_of_the_native_route_is_named_on_one_short_line(name: str) -> None:
    with pytest.raises(Problem, match="is not a field of this route") as problem:
        native(**{name: 1})
    for shown in (problem.value.message, problem.value.param):
        assert shown is not None and len(shown) < 300 and shown.isprintable()


def test_the_native_route_takes_its_fields_and_what_requests_nothing() -> None:
    request = native(agent="a", call=3, replace_reason="short", tool_choice=None, stop=[], max_tokens=5)
    assert (request.agent, request.reason, request.max_tokens) == ("a", "short", 5)


@pytest.mark.parametrize("wire", WIRES)
def test_fields_that_no_wire_knows_are_counted_unless_they_request_nothing(wire: str) -> None:
    assert read(wire).unknown == 0
    assert read(wire, hologram=1, depth={"a": 2}, empty=None, none=[], top_p=0.5).unknown == 2


@pytest.mark.parametrize("wire", WIRES)
def test_a_providers_own_search_is_left_out_or_refused_and_false_requests_none(wire: str) -> None:
    for name, value in (
        ("plugins", [{"id": "web"}]),
        ("search_parameters", {"mode": "on"}),
        ("enable_search", True),
    ):
        if wire == "chat":
            assert read(wire, **{name: value}).left_out == 1
        else:
            with pytest.raises(Problem, match=f"^{name} is not supported: a provider's servers"):
                read(wire, **{name: value})
        assert read(wire, **{name: False}).left_out == 0
