"""Which renderer a model gets, and the treatment of chat templates that rewrite earlier messages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from orchestrator.contracts.choices import UnprovenTemplate
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages.turns import CanonicalCall, Turn
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.render import Renderer, TemplateRenderer, load_renderer
from orchestrator.gateway.render.minimax_m2 import MiniMaxRenderer
from orchestrator.gateway.render.qwen3 import QwenRenderer
from tests.unit.gateway.driver import Driver, user
from tests.unit.gateway.models import (
    CHATML_CUTS,
    CHATML_DROPS,
    CHATML_FUNCTION,
    CHATML_KEEPS,
    chatml_model,
    minimax_model,
)

DROPPING = [pytest.param(CHATML_DROPS, id="drops"), pytest.param(CHATML_CUTS, id="cuts")]


def test_a_family_speaks_for_its_model_types_and_the_template_for_all_others(tmp_path: Path) -> None:
    assert isinstance(load_renderer(chatml_model(tmp_path / "a", CHATML_DROPS)), QwenRenderer)
    assert isinstance(
        load_renderer(chatml_model(tmp_path / "b", CHATML_KEEPS, model_type="qwen3_moe")), QwenRenderer
    )
    assert isinstance(load_renderer(minimax_model(tmp_path / "c")), MiniMaxRenderer)
    assert isinstance(
        load_renderer(chatml_model(tmp_path / "d", CHATML_KEEPS, model_type="x")), TemplateRenderer
    )


def test_a_model_that_only_bears_a_familys_name_is_refused_until_a_renderer_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="model_type says qwen3, but its chat template writes otherwise"
    ):
        load_renderer(chatml_model(tmp_path / "a", CHATML_FUNCTION))
    for chosen, kind in (("template", TemplateRenderer), ("qwen3", QwenRenderer)):
        directory = chatml_model(tmp_path / chosen, CHATML_FUNCTION, render={"renderer": chosen})
        assert isinstance(load_renderer(directory), kind)


@pytest.mark.parametrize("template", DROPPING)
def test_a_template_that_rewrites_earlier_messages_is_refused_with_the_place(
    tmp_path: Path, template: str
) -> None:
    directory = chatml_model(tmp_path / "m", template, model_type="x")
    with pytest.raises(ConfigurationError) as refused:
        load_renderer(directory)
    for part in (
        "reasoning before a later question",
        "before message 3",
        "I count.",
        "gateway.unproven_template",
    ):
        assert part in str(refused.value)


def test_arguments_that_make_a_template_keep_earlier_messages_prove_it(tmp_path: Path) -> None:
    template = CHATML_KEEPS.replace(
        "message.reasoning_content %}", "message.reasoning_content and (keep_all or loop.index0 > ns.last) %}"
    )
    with pytest.raises(ConfigurationError):
        load_renderer(chatml_model(tmp_path / "a", template, model_type="x"))
    render = {"template_arguments": {"keep_all": True}}
    assert load_renderer(chatml_model(tmp_path / "b", template, model_type="x", render=render)).extends


@pytest.mark.parametrize("template", DROPPING)
def test_configured_otherwise_every_request_is_a_sample_of_its_own_and_says_so(
    tmp_path: Path, template: str
) -> None:
    directory = chatml_model(tmp_path / "m", template, model_type="x")
    with structlog.testing.capture_logs() as logged:
        renderer = load_renderer(directory, unproven=UnprovenTemplate.PER_REQUEST)
    assert not renderer.extends
    (loud,) = [entry for entry in logged if entry["event"] == "template.per_request"]
    assert loud["log_level"] == "error" and "I count." in loud["failure"]
    driver = Driver(renderer)
    first = driver.step([user("oak")], Turn(role="assistant", text="Two.", reasoning="I count."))
    second = driver.step(
        [user("oak"), first.message, user("elm")], Turn(role="assistant", text="One.", reasoning="Hm.")
    )
    assert (second.origin.kind, second.origin.reason) == (StepKind.REWRITES, "per_request")
    assert second.origin.difference is not None and second.origin.difference.field == "ids"
    assert "I count." not in renderer.decode(second.node.full.tolist()), (
        "the state is what the template makes of it"
    )
    third = driver.step([user("ash")], Turn(role="assistant", text="None.", reasoning=None))
    assert (third.origin.kind, third.origin.reason) == (StepKind.ROOT, "new_conversation")


def test_even_then_a_request_continues_where_the_template_leaves_everything_as_it_was(tmp_path: Path) -> None:
    directory = chatml_model(tmp_path / "m", CHATML_DROPS, model_type="x")
    driver = Driver(load_renderer(directory, unproven=UnprovenTemplate.PER_REQUEST))
    first = driver.step([user("oak")], Turn(role="assistant", text="Two.", reasoning=None))
    second = driver.step(
        [user("oak"), first.message, user("elm")], Turn(role="assistant", text="One.", reasoning=None)
    )
    assert (second.origin.kind, second.origin.reason, second.node.parent) == (
        StepKind.CONTINUES,
        None,
        first.node,
    )


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "a chat template is missing"),
        ("{% for %}", "cannot be compiled"),
        ("{{ raise_exception('no such roles') }}", "no such roles"),
        ("{{ ''.__class__.__mro__ }}", "refuses a question and an answer"),
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
            "ends an assistant message with no special token",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}",
            "leaves out what the assistant says",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, template: str | None, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_renderer(chatml_model(tmp_path / "m", template, model_type="x"))


def test_a_conversation_that_the_template_refuses_is_the_callers_mistake(tmp_path: Path) -> None:
    template = CHATML_KEEPS.replace(
        "{%- if tools %}",
        "{%- if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}\n{%- if tools %}",
        1,
    )
    renderer = load_renderer(chatml_model(tmp_path / "m", template, model_type="x"))
    with pytest.raises(Problem, match="no system here") as refused:
        renderer.opening([Turn(role="system", text="rules"), Turn(role="user", text="oak")], (), asking=True)
    assert refused.value.status == 400


def test_templates_are_found_wherever_they_are_published(tmp_path: Path) -> None:
    places: list[tuple[str, Callable[[Path], int]]] = [
        ("chat_template.jinja", lambda path: path.write_text(CHATML_KEEPS)),
        ("chat_template.json", lambda path: path.write_text(_json({"chat_template": CHATML_KEEPS}))),
        ("tokenizer_config.json", lambda path: path.write_text(_json({"chat_template": [
            {"name": "default", "template": CHATML_KEEPS}, {"name": "tool_use", "template": CHATML_KEEPS}]}))),
    ]  # fmt: skip
    for name, write in places:
        directory = chatml_model(tmp_path / name, None, model_type="x")
        write(directory / name)
        assert load_renderer(directory).extends


def test_a_block_that_marks_what_is_trained_on_is_its_body(tmp_path: Path) -> None:
    template = CHATML_KEEPS.replace(
        "{{- message.content }}", "{% generation %}{{- message.content }}{% endgeneration %}"
    )
    assert load_renderer(chatml_model(tmp_path / "m", template, model_type="x")).extends


def test_a_word_of_the_probes_in_a_users_text_changes_nothing(renderer: Renderer) -> None:
    action = renderer.action(Turn(role="assistant", text="Two.", reasoning="Hm."))
    text = renderer.decode(renderer.between(action, [Turn(role="user", text="penstockbase")], asking=True))
    assert text.count("penstockbase") == 1 and text.startswith("\n")


NAMED = CHATML_KEEPS.replace(
    "'\\n<tool_response>\\n' + message.content",
    "'\\n<tool_response>\\n' + message.name + '#' + message.tool_call_id + ': ' + message.content",
)


def test_a_template_that_prints_what_a_result_answers_prints_the_call_whose_id_it_names(
    tmp_path: Path,
) -> None:
    renderer = load_renderer(chatml_model(tmp_path / "m", NAMED, model_type="x"))
    assert NAMED != CHATML_KEEPS and renderer.extends, "pieces make up the whole"
    driver = Driver(renderer)
    calls = tuple(CanonicalCall(name, "{}") for name in ("rm", "ls"))
    first = driver.step([user("go")], Turn(role="assistant", text="so", reasoning=None, calls=calls))
    ids = [call["id"] for call in first.message["tool_calls"]]
    second: dict[str, Any] = {"role": "tool", "tool_call_id": ids[1], "content": "oak"}
    for results, shown in (
        ([second], ["ls#000000001: oak"]),
        (
            [second, {**second, "tool_call_id": ids[0], "content": "gone"}],
            ["rm#000000000: gone", "ls#000000001: oak"],
        ),
        ([{**second, "tool_call_id": "unknown"}], ["#999999999: oak"]),
    ):
        placed = driver.placing([user("go"), first.message, *results])
        assert placed.parent is first.node
        text = renderer.decode(placed.ids.tolist())
        found = [part.split("\n")[1] for part in text.split("<tool_response>")[1:]]
        assert found == shown
        whole = renderer.decode(renderer.whole(placed.turns, ()))
        assert [part.split("\n")[1] for part in whole.split("<tool_response>")[1:]] == shown


def _json(value: Any) -> str:
    return json.dumps(value)
