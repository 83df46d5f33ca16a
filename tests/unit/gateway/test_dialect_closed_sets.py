"""Every closed set of strings of the three wires: a value outside it is refused by its name, or its field is listed as without effect."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from anthropic.types.beta import message_create_params as anthropic_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

from orchestrator.gateway.http.dialects.base import Incoming
from orchestrator.gateway.http.dialects.fields import FIELDS, Treatment
from orchestrator.gateway.problems import Problem
from tests.unit.gateway.dialect_rig import ANTHROPIC, CHAT, COMMAND, RESPONSES

WIRES = {wire.dialect.name: wire for wire in (CHAT, RESPONSES, ANTHROPIC)}
DOCUMENTED = {
    "chat": chat_params.CompletionCreateParamsBase,
    "responses": responses_params.ResponseCreateParamsBase,
    "anthropic": anthropic_params.MessageCreateParamsBase,
}
BANANA = "banana"
F = {
    "chat": {"type": "function", "function": {"name": "f", "parameters": COMMAND}},
    "responses": {"type": "function", "name": "f", "parameters": COMMAND},
    "anthropic": {"name": "f", "input_schema": COMMAND},
}
USER: dict[str, Any] = {"role": "user", "content": "go"}


def read(wire: str, **more: Any) -> Incoming:
    conversation = {"input" if wire == "responses" else "messages": [USER]}
    return WIRES[wire].dialect.read({**conversation, "tools": [F[wire]], **more}, {})


def custom(**form: Any) -> dict[str, Any]:
    return {"tools": [{"type": "custom", "name": "g", "format": form}]}


def chat_custom(**form: Any) -> dict[str, Any]:
    return {"tools": [{"type": "custom", "custom": {"name": "g", "format": form}}]}


def spoken(wire: str, **message: Any) -> dict[str, Any]:
    return {"input" if wire == "responses" else "messages": [message]}


def within(tool: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"type": "namespace", "name": "a", "tools": [tool]}]}


def shell(**environment: Any) -> dict[str, Any]:
    return {"tools": [{"type": "shell", "environment": environment}]}


ALLOWED = {"mode": BANANA, "tools": [F["responses"]]}
LARK = {"type": "grammar", "syntax": BANANA, "definition": "x"}
# A path of the official packages → a body with a value outside the set, and the words of its refusal.
REFUSED: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    "chat": {
        "tool_choice": ({"tool_choice": BANANA}, "^tool_choice must be auto, none, required"),
        "function_call": ({"function_call": BANANA}, "^function_call must be auto, none, required"),
        "tool_choice.type": ({"tool_choice": {"type": BANANA}}, "^tool_choice must be auto, none, required"),
        "tool_choice.allowed_tools.mode": (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}},
            r"^tool_choice\.allowed_tools\.mode must be one of auto, required$",
        ),
        "tools.type": ({"tools": [{"type": BANANA}]}, r"^tools\[0\] is of the type 'banana'"),
        "tools.custom.format.type": (chat_custom(type=BANANA), r"^tools\[0\]\.custom\.format\.type must be one of text, grammar$"),
        "tools.custom.format.grammar.syntax": (
            chat_custom(type="grammar", grammar={"syntax": BANANA, "definition": "x"}),
            r"^tools\[0\]\.custom\.format\.grammar\.syntax must be one of lark, regex$",
        ),
        "messages.role": (spoken("chat", role=BANANA, content="x"), "unknown role 'banana'"),
        "messages.content.type": (spoken("chat", role="user", content=[{"type": BANANA}]), "unsupported type 'banana'"),
        "response_format.type": ({"response_format": {"type": BANANA}}, "^response_format is not supported"),
        "modalities": ({"modalities": [BANANA]}, "^modalities is not supported"),
    },
    "responses": {
        "tool_choice": ({"tool_choice": BANANA}, "^tool_choice must be auto, none, required"),
        "tool_choice.type": ({"tool_choice": {"type": BANANA}}, "^tool_choice must be auto, none, required"),
        "tool_choice.mode": ({"tool_choice": {"type": "allowed_tools", **ALLOWED}}, r"^tool_choice\.mode must be one of auto, required$"),
        "tools.type": ({"tools": [{"type": BANANA}]}, r"^tools\[0\] is of the type 'banana'"),
        "tools.tools.type": (within({"type": BANANA}), r"^tools\[0\]\.tools\[0\] is of the type 'banana'"),
        "tools.format.type": (custom(type=BANANA), r"^tools\[0\]\.format\.type must be one of text, grammar$"),
        "tools.format.syntax": (custom(**LARK), r"^tools\[0\]\.format\.syntax must be one of lark, regex$"),
        "tools.tools.format.type": (
            within(*custom(type=BANANA)["tools"]), r"^tools\[0\]\.tools\[0\]\.format\.type must be one of"),
        "tools.tools.format.syntax": (
            within(*custom(**LARK)["tools"]), r"^tools\[0\]\.tools\[0\]\.format\.syntax must be one of"),
        "tools.environment.type": (shell(type=BANANA), r"^tools\[0\]\.environment\.type must be one of local, "),
        "tools.environment.skills.type": (shell(type="local", skills=[{"type": BANANA}]), r"environment\.skills is not read"),
        "include": ({"include": [BANANA]}, "^include: 'banana' is not known here; known are"),
        "text.format.type": ({"text": {"format": {"type": BANANA}}}, r"^text\.format is not supported"),
        "input.role": (spoken("responses", role=BANANA, content="x"), "unknown role 'banana'"),
        "input.type": (spoken("responses", type=BANANA), "unknown type 'banana'"),
        "input.content.type": (spoken("responses", role="user", content=[{"type": BANANA}]), "unsupported type 'banana'"),
        "truncation": ({"truncation": BANANA}, "^truncation is not supported"),
    },
    "anthropic": {
        "tool_choice.type": ({"tool_choice": {"type": BANANA}}, "^tool_choice must be auto, none, required"),
        "tools.type": ({"tools": [{"type": BANANA, "name": "x"}]}, r"^tools\[0\] is of the type 'banana'"),
        "tools.name": ({"tools": [{"type": "bash_20250124", "name": BANANA}]}, "must have the name 'bash'"),
        "tools.input_schema.type": ({"tools": [{"name": "f", "input_schema": {"type": BANANA}}]}, "must be of type object, not 'banana'"),
        "thinking.type": ({"thinking": {"type": BANANA}}, r"^thinking\.type must be one of enabled, "),
        "thinking.display": ({"thinking": {"display": BANANA}}, r"^thinking\.display must be one of summarized, "),
        "output_config.format.type": ({"output_config": {"format": {"type": BANANA}}}, r"^output_config\.format is not supported"),
        "messages.role": (spoken("anthropic", role=BANANA, content="x"), "unknown role 'banana'"),
        "messages.content.type": (spoken("anthropic", role="user", content=[{"type": BANANA}]), "unsupported type 'banana'"),
        "system.type": ({"system": [{"type": BANANA}]}, "unsupported type 'banana'"),
    },
}  # fmt: skip
# Fields of a provider's own tools, which are left out with all that they hold, and names of models.
LEFT_OUT = {
    "chat": {"model"},
    "responses": {
        "model", "tools.filters", "tools.ranking_options", "tools.environment", "tools.search_context_size", "tools.user_location",
        "tools.connector_id", "tools.require_approval", "tools.container", "tools.action", "tools.background", "tools.complexity",
        "tools.input_fidelity", "tools.model", "tools.moderation", "tools.output_format", "tools.quality", "tools.size", "tools.svg",
        "tools.search_content_types", "tools.execution",
    },
    "anthropic": {"model", "tools.user_location", "tools.url_sources", "tools.response_inclusion", "tools.model", "tools.caching"},
}  # fmt: skip
# Keys of a tool that the guide lists as without effect.
WITHOUT_EFFECT: dict[str, dict[str, Callable[[Any], dict[str, Any]]]] = {
    "chat": {},
    "responses": {
        "tools.allowed_callers": lambda value: {"allowed_callers": ["direct", value]},
        "tools.tools.allowed_callers": lambda value: {"allowed_callers": ["direct", value]},
    },
    "anthropic": {
        "tools.allowed_callers": lambda value: {"allowed_callers": ["direct", value]},
        "tools.cache_control.type": lambda value: {"cache_control": {"type": value}},
        "tools.cache_control.ttl": lambda value: {"cache_control": {"type": "ephemeral", "ttl": value}},
    },
}


def closed_sets(hint: Any, path: str, above: frozenset[Any] = frozenset()) -> Iterator[str]:
    """Paths of the strings that have only some values."""
    if get_origin(hint) is Literal:
        if any(isinstance(value, str) for value in get_args(hint)):
            yield path
    elif hasattr(hint, "__required_keys__"):
        if hint not in above:
            for key, inner in get_type_hints(hint).items():
                yield from closed_sets(inner, f"{path}.{key}", above | {hint})
    else:
        for inner in get_args(hint):
            yield from closed_sets(inner, path, above)


def treated(wire: str, path: str) -> bool:
    """Whether the table of fields lists the path, or a field around it, with one treatment for all values."""
    parts = path.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    found = [FIELDS[wire][name].treatment for name in names if name in FIELDS[wire]]
    return any(treatment is not Treatment.HONOURED for treatment in found)


@pytest.mark.parametrize("wire", WIRES)
def test_every_closed_set_of_the_official_packages_is_refused_left_out_or_listed(wire: str) -> None:
    unknown = set()
    for field, hint in get_type_hints(DOCUMENTED[wire]).items():
        if field in (
            "messages",
            "input",
            "system",
        ):  # their roles and types are in the table; parts are text, or refused
            continue
        for path in closed_sets(hint, field):
            parts = path.split(".")
            around = {".".join(parts[: i + 1]) for i in range(len(parts))}
            listed = path in REFUSED[wire] or path in WITHOUT_EFFECT[wire] or around & LEFT_OUT[wire]
            if not listed and not treated(wire, path):
                unknown.add(path)
    assert unknown == set()


CASES = [(wire, path, *case) for wire, cases in REFUSED.items() for path, case in cases.items()]


@pytest.mark.parametrize(
    ("wire", "path", "body", "words"), CASES, ids=[f"{wire}-{path}" for wire, path, _, _ in CASES]
)
def test_a_value_outside_a_closed_set_is_refused_by_its_place(
    wire: str, path: str, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(Problem, match=words) as problem:
        read(wire, **body)
    assert problem.value.status == 400 and "\n" not in problem.value.message and problem.value.param


@pytest.mark.parametrize("wire", WIRES)
def test_a_key_of_a_tool_that_the_guide_lists_as_without_effect_changes_nothing(wire: str) -> None:
    plain = read(wire).request
    for path, made in WITHOUT_EFFECT[wire].items():
        request = read(wire, tools=[{**F[wire], **made(BANANA)}]).request
        assert (request.tools, request.rule, request.left_out) == (plain.tools, plain.rule, 0), path


@pytest.mark.parametrize("mode", [None, "", "none", "any", ["auto"], {}, True])
def test_the_mode_of_allowed_tools_is_never_guessed(mode: Any) -> None:
    tools = [{"type": "function", "name": "f"}]
    for wire, key, choice in (
        ("responses", "tool_choice.mode", {"mode": mode, "tools": tools}),
        ("chat", "tool_choice.allowed_tools.mode", {"allowed_tools": {"mode": mode, "tools": tools}}),
    ):
        with pytest.raises(Problem, match=rf"^{key} must be one of auto, required$") as problem:
            read(wire, tool_choice={"type": "allowed_tools", **choice})
        assert problem.value.param == key
