"""Calls as MiniMax-M2 and Qwen3-Coder write them: every call kept, every value as it was written, typed only by the tool's schema."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.gateway.completions.grammar import read_calls, typed
from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.completions.schema import MAX_SCHEMAS, declared, fits
from orchestrator.gateway.messages.turns import CanonicalCall, Turn, canonical_json
from orchestrator.gateway.render import Renderer, TokenizerAdapter, load_renderer
from tests.unit.gateway.models import CHATML_FUNCTION, chatml_model

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "maybe": {"type": ["string", "null"]},
                "line": {"type": "integer"},
                "share": {"type": "number"},
                "all": {"type": "boolean"},
                "where": {"type": "array", "items": {"type": "string"}},
                "options": {"$ref": "#/$defs/Options"},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "free": {},
            },
            "$defs": {"Options": {"type": "object"}},
        },
    },
}


def invoke(*parameters: tuple[str, str], name: str = "edit") -> str:
    inside = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in parameters)
    return f'<invoke name="{name}">\n{inside}</invoke>\n'


def arguments_of(*parameters: tuple[str, str]) -> Any:
    read = read_calls("invoke", "\n" + invoke(*parameters), [TOOL])
    assert read is not None and len(read) == 1
    return read[0].mapping()


@pytest.mark.parametrize("value", ["hello", "", "nullable", " null", "None", "0"])
def test_a_nullable_parameter_is_null_only_when_null_was_written(value: str) -> None:
    assert arguments_of(("maybe", value)) == {"maybe": value}
    assert arguments_of(("maybe", "null")) == {"maybe": None}


@pytest.mark.parametrize(
    "value",
    ["3", "3.0", "true", "null", "[1]", '{"a": 1}', '"quoted"', " two\n", "</invoke>", "a </parameter> b"],
)
def test_a_string_stays_the_string_that_was_written(value: str) -> None:
    assert arguments_of(("text", value)) == {"text": value}


def test_other_types_are_read_as_json() -> None:
    arguments = (
        ("line", "3"),
        ("share", "0.5"),
        ("all", "true"),
        ("where", '["a", "b"]'),
        ("options", '{"x": null}'),
    )
    assert arguments_of(*arguments) == {
        "line": 3,
        "share": 0.5,
        "all": True,
        "where": ["a", "b"],
        "options": {"x": None},
    }


def test_where_a_schema_leaves_a_choice_its_order_decides_and_without_a_type_text_stays_text() -> None:
    assert arguments_of(("either", "3"), ("free", "3")) == {"either": 3, "free": "3"}
    assert arguments_of(("either", "three")) == {"either": "three"}
    assert typed("3", ("string", "integer")) == "3"
    assert typed("[3]", ("string", "array")) == [3]


@pytest.mark.parametrize(
    "block",
    [
        "",
        "just text",
        invoke(("line", "three")),
        invoke(("line", "true")),
        invoke(("all", "1")),
        invoke(("where", "a, b")),
        invoke(("text", "a"), ("text", "b")),
        invoke(("text", "a"), name="remove"),
        invoke(("text", "a")) + "and more",
        '<invoke name="edit">\n<parameter name="text">a</parameter>\n',
        '<invoke name="edit">\n<parameter name="text">a\n</invoke>\n',
        '<invoke name="edit">\nwords\n</invoke>\n',
        '<invoke name="">\n</invoke>\n',
    ],
)
def test_a_block_that_does_not_fit_is_refused_whole(block: str) -> None:
    assert read_calls("invoke", block, [TOOL]) is None


def test_every_parallel_call_is_kept_in_its_order_within_and_across_blocks(
    minimax: Renderer, minimax_tokens: TokenizerAdapter
) -> None:
    one, two, three = (invoke(("text", word)) for word in ("a", "b", "c"))
    text = f"Hm.\n</think>\n\nso\n<minimax:tool_call>\n{one}{two}</minimax:tool_call>\n<minimax:tool_call>\n{three}</minimax:tool_call>[e~["
    parsed = parse_action(minimax, minimax_tokens.encode(text), [TOOL])
    calls = tuple(CanonicalCall("edit", canonical_json({"text": word})) for word in ("a", "b", "c"))
    assert (parsed.status, parsed.turn) == (
        "ok",
        Turn(role="assistant", text="so", reasoning="Hm.", calls=calls),
    )


@pytest.mark.parametrize(
    "text",
    [
        "Hm.\n</think>\n\n<minimax:tool_call>\n",
        "Hm.\n<minimax:tool_call>\n" + invoke(("text", "a")) + "</minimax:tool_call>",
        "Hm.\n</think>\n\n</minimax:tool_call>",
        "Hm.\n</think>\n\n<minimax:tool_call>\n" + invoke(("line", "x")) + "</minimax:tool_call>",
        "Hm.\n</think>\n\n<minimax:tool_call>\n" + invoke(("text", "a")) + "</minimax:tool_call> so",
        "Hm.\n</think>\n\nso </think> so",
    ],
)
def test_what_does_not_fit_is_served_as_text_with_nothing_called(
    minimax: Renderer, minimax_tokens: TokenizerAdapter, text: str
) -> None:
    parsed = parse_action(minimax, minimax_tokens.encode(text + "[e~["), [TOOL])
    assert (parsed.status, parsed.turn.calls, parsed.turn.reasoning is not None) == ("ill_formed", (), True)
    assert "<think>" not in parsed.turn.text


letters = st.characters(codec="utf-8", exclude_characters="\x00")
quotes = st.sampled_from(
    (
        "<think>",
        "</think>",
        "</minimax:tool_call>",
        "</tool_call>",
        "[e~[",
        "<invoke",
        "</invoke>",
        "\n",
        "\ufdd0",
    )
)
words = st.lists(st.one_of(st.text(letters, max_size=6), quotes), max_size=4).map("".join)
plain = st.text(letters, max_size=12)
values = st.fixed_dictionaries(
    {},
    optional={
        "text": words,
        "maybe": st.one_of(st.none(), plain.filter(lambda value: value != "null")),
        "line": st.integers(-(2**53), 2**53),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "all": st.booleans(),
        "where": st.lists(plain, max_size=2),
        "options": st.dictionaries(plain, st.none() | st.booleans() | plain, max_size=2),
    },
)


@settings(max_examples=80, deadline=None)
@given(text=words, reasoning=words, arguments=st.lists(values, max_size=3))
def test_what_the_policy_would_sample_for_a_message_parses_to_that_message(
    renderer: Renderer, text: str, reasoning: str, arguments: list[dict[str, Any]]
) -> None:
    calls = tuple(CanonicalCall("edit", canonical_json(each)) for each in arguments)
    turn = Turn(role="assistant", text=text.strip(), reasoning=reasoning.strip() or None, calls=calls)
    parsed = parse_action(renderer, renderer.action(turn), [TOOL])
    assert parsed.status == "ok"
    assert parsed.turn.same(turn) and parsed.turn.reasoning == turn.reasoning


def test_qwen3_coder_writes_calls_as_functions(tmp_path: Path) -> None:
    renderer = load_renderer(chatml_model(tmp_path / "m", CHATML_FUNCTION, model_type="another"))
    tokens = TokenizerAdapter(tmp_path / "m")
    body = "<function=edit>\n<parameter=text>\n  two\nlines\n</parameter>\n<parameter=line>\n3\n</parameter>\n</function>"
    parsed = parse_action(renderer, tokens.encode(f"so\n<tool_call>\n{body}\n</tool_call><|im_end|>"), [TOOL])
    assert parsed.turn.calls == (CanonicalCall("edit", canonical_json({"text": "  two\nlines", "line": 3})),)


def test_types_are_found_behind_references_unions_enums_and_nullable() -> None:
    schema = {
        "$defs": {"Mode": {"enum": ["a", "b"]}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {
            "mode": {"$ref": "#/$defs/Mode"},
            "loop": {"$ref": "#/$defs/Loop"},
            "maybe": {"type": "integer", "nullable": True},
            "one": {"oneOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]},
            "all": {"allOf": [{"description": "x"}, {"type": "boolean"}]},
            "open": {"anyOf": [{"type": "string"}, {}]},
            "const": {"const": 3},
            "remote": {"$ref": "https://example.org/schema"},
        },
    }
    types = {name: declared(name, schema) for name in (*schema["properties"], "unknown")}
    assert types == {
        "mode": ("string",),
        "loop": (),
        "maybe": ("integer", "null"),
        "one": ("string", "null"),
        "all": ("boolean",),
        "open": (),
        "const": ("integer",),
        "remote": (),
        "unknown": (),
    }


class _Counted(dict[str, Any]):
    """A schema that counts its reads."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


def _union(count: int, *others: Any) -> dict[str, Any]:
    return {"anyOf": [{"$ref": "#/$defs/N"}] * count + list(others)}


def test_a_schema_that_refers_to_itself_in_many_places_is_read_once() -> None:
    reads = []
    for count in (1, 5):
        recursive = _Counted(_union(count, {"type": "string"}))
        schema = {"properties": {"a": {"$ref": "#/$defs/N"}}, "$defs": {"N": recursive}}
        assert declared("a", schema) == ("string",), "a reference to itself adds no type"
        reads.append(recursive.reads)
    assert reads[0] == reads[1]


def test_schemas_that_refer_to_one_another_have_the_types_of_all() -> None:
    definitions = {
        "N": {"anyOf": [{"$ref": "#/$defs/M"}, {"type": "string"}]},
        "M": {"oneOf": [{"$ref": "#/$defs/N"}, {"$ref": "#/$defs/N"}, {"type": "array"}]},
        "Open": {"anyOf": [{"$ref": "#/$defs/Open"}, {"type": "string"}, {}]},
    }
    names = {name: {"$ref": f"#/$defs/{name}"} for name in definitions}
    types = {name: set(declared(name, {"properties": names, "$defs": definitions})) for name in names}
    assert types == {"N": {"string", "array"}, "M": {"string", "array"}, "Open": set()}


def test_a_parameter_with_too_many_schemas_has_no_declared_type() -> None:
    first, last, read = {"type": "string"}, {"type": "null"}, _Counted(type="integer")
    few = {"properties": {"a": {"anyOf": [first] * (MAX_SCHEMAS - 2) + [last]}}}
    assert declared("a", few) == ("string", "null")
    many = {"properties": {"a": {"anyOf": [first] * MAX_SCHEMAS + [read] * MAX_SCHEMAS}}}
    assert declared("a", many) == ()
    assert read.reads == 0


@pytest.mark.parametrize(
    ("schema", "allows"),
    [
        (None, True),
        ({"type": 3}, True),
        ({"properties": []}, True),
        ({"properties": {"a": 3}}, True),
        ({"required": None}, True),
        ({"properties": {"a": {"type": "wizard"}}}, True),
        ([], True),
        ("x", False),
        (3, False),
        ([1], False),
    ],
)
def test_a_malformed_schema_refuses_or_allows_but_never_raises(schema: Any, allows: bool) -> None:
    tool = {"name": "f", "parameters": schema}
    assert fits("f", {"a": 1}, [tool]) is allows
    assert (read_calls("invoke", invoke(("a", "1"), name="f"), [tool]) is not None) is allows
