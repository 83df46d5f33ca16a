"""Which renderer speaks for a model, and what happens to chat templates that rewrite what was said."""

import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages import Turn
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
    assert isinstance(load_renderer(chatml_model(tmp_path / "b", CHATML_KEEPS, model_type="qwen3_moe")), QwenRenderer)  # fmt: skip
    assert isinstance(load_renderer(minimax_model(tmp_path / "c")), MiniMaxRenderer)
    assert isinstance(
        load_renderer(chatml_model(tmp_path / "d", CHATML_KEEPS, model_type="x")), TemplateRenderer
    )


def test_a_model_that_only_bears_a_familys_name_is_refused_until_somebody_chooses(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="model_type says qwen3, but its chat template writes otherwise"
    ):
        load_renderer(chatml_model(tmp_path / "a", CHATML_FUNCTION))
    for chosen, kind in (("template", TemplateRenderer), ("qwen3", QwenRenderer)):
        directory = chatml_model(tmp_path / chosen, CHATML_FUNCTION, render={"renderer": chosen})
        assert isinstance(load_renderer(directory), kind)


@pytest.mark.parametrize("template", DROPPING)
def test_a_template_that_rewrites_what_was_said_is_refused_with_the_place(
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


def test_arguments_that_make_a_template_keep_what_was_said_prove_it(tmp_path: Path) -> None:
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
        renderer = load_renderer(directory, unproven="per_request")
    assert not renderer.extends
    (loud,) = [entry for entry in logged if entry["event"] == "template.per_request"]
    assert loud["log_level"] == "error" and "I count." in loud["failure"]
    driver = Driver(renderer)
    first = driver.step([user("oak")], Turn("assistant", "Two.", "I count."))
    second = driver.step([user("oak"), first.message, user("elm")], Turn("assistant", "One.", "Hm."))
    assert (second.origin.kind, second.origin.reason) == (StepKind.REWRITES, "per_request")
    assert second.origin.difference is not None and second.origin.difference.field == "ids"
    assert "I count." not in renderer.decode(second.node.full.tolist()), (
        "the state is what the template makes of it"
    )
    third = driver.step([user("ash")], Turn("assistant", "None.", None))
    assert (third.origin.kind, third.origin.reason) == (StepKind.ROOT, "new_conversation")


def test_even_then_a_request_continues_where_the_template_leaves_everything_as_it_was(tmp_path: Path) -> None:
    directory = chatml_model(tmp_path / "m", CHATML_DROPS, model_type="x")
    driver = Driver(load_renderer(directory, unproven="per_request"))
    first = driver.step([user("oak")], Turn("assistant", "Two.", None))
    second = driver.step([user("oak"), first.message, user("elm")], Turn("assistant", "One.", None))
    assert (second.origin.kind, second.origin.reason, second.node.parent) == (
        StepKind.CONTINUES,
        None,
        first.node,
    )


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "there is no chat template"),
        ("{% for %}", "cannot be compiled"),
        ("{{ raise_exception('no such roles') }}", "no such roles"),
        ("{{ ''.__class__.__mro__ }}", "refuses a question and an answer"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "ends an assistant message with no special token"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}", "leaves out what the assistant says"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, template: str | None, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_renderer(chatml_model(tmp_path / "m", template, model_type="x"))


def test_a_conversation_that_the_template_refuses_is_the_callers_mistake(tmp_path: Path) -> None:
    template = CHATML_KEEPS.replace(
        "{%- if tools %}", "{%- if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}\n{%- if tools %}", 1,
    )  # fmt: skip
    renderer = load_renderer(chatml_model(tmp_path / "m", template, model_type="x"))
    with pytest.raises(Problem, match="no system here") as refused:
        renderer.opening([Turn("system", "rules"), Turn("user", "oak")], (), asking=True)
    assert refused.value.status == 400


def test_templates_are_found_wherever_they_are_published(tmp_path: Path) -> None:
    for name, write in (
        ("chat_template.jinja", lambda path: path.write_text(CHATML_KEEPS)),
        ("chat_template.json", lambda path: path.write_text(_json({"chat_template": CHATML_KEEPS}))),
        ("tokenizer_config.json", lambda path: path.write_text(_json({"chat_template": [
            {"name": "default", "template": CHATML_KEEPS}, {"name": "tool_use", "template": CHATML_KEEPS}]}))),
    ):  # fmt: skip
        directory = chatml_model(tmp_path / name, None, model_type="x")
        write(directory / name)
        assert load_renderer(directory).extends


def test_a_block_that_marks_what_is_trained_on_is_its_body(tmp_path: Path) -> None:
    template = CHATML_KEEPS.replace("{{- message.content }}", "{% generation %}{{- message.content }}{% endgeneration %}")  # fmt: skip
    assert load_renderer(chatml_model(tmp_path / "m", template, model_type="x")).extends


def test_a_word_of_the_probes_in_a_users_text_changes_nothing(renderer: Renderer) -> None:
    action = renderer.action(Turn("assistant", "Two.", "Hm."))
    text = renderer.decode(renderer.between(action, [Turn("user", "penstockbase")], asking=True))
    assert text.count("penstockbase") == 1 and text.startswith("\n")


def _json(value: Any) -> str:
    return json.dumps(value)
