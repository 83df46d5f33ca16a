"""Choose the renderer of a model directory.

1. `renderer` of its render.json: qwen3, minimax-m2, or template (the model's own chat template);
2. else the family that its model_type names; a chat template in the directory must agree with it, or the model is refused;
3. without such a family, its own chat template.
"""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestrator.contracts.choices import UnprovenTemplate
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.render.base import Renderer
from orchestrator.gateway.render.chat_template import ChatTemplate
from orchestrator.gateway.render.proof import prove
from orchestrator.gateway.render.renderers_package import BridgedRenderer
from orchestrator.gateway.render.templated import TemplateRenderer
from orchestrator.gateway.render.tokenizer import TokenizerAdapter
from orchestrator.runtime.log import get
from orchestrator.trajectory.routes import Experts, check_replay

log = get(__name__)

FAMILIES = {"qwen3": "qwen3:QwenRenderer", "minimax-m2": "minimax_m2:MiniMaxRenderer"}
MODEL_TYPES = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "minimax_m2": "minimax-m2", "minimax": "minimax-m2"}
TEMPLATE = "template"


def experts(directory: Path) -> Experts | None:
    """The experts of the model in `directory`. Raises ConfigurationError when their routes cannot be replayed."""
    config = _read_json(directory / "config.json")
    check_replay(config, directory)
    return Experts.of(config)


def load_renderer(directory: Path, *, unproven: UnprovenTemplate = UnprovenTemplate.REFUSE) -> Renderer:
    """The renderer of a model directory. `unproven`: the treatment of a chat template that does not extend conversations.

    Raises ConfigurationError if a file is missing, vocabularies differ, no renderer supports the format, or the proof fails and `unproven` is refuse.
    """
    tokenizer = TokenizerAdapter(directory)
    config = _read_json(directory / "config.json")
    settings = _read_json(directory / "render.json") if (directory / "render.json").is_file() else {}
    text = {**config, **config.get("text_config", {})}
    vocabulary = text.get("vocab_size", tokenizer.size)
    if tokenizer.size > vocabulary:
        raise ConfigurationError(
            f"{directory}: the tokenizer makes {tokenizer.size} ids and the model knows {vocabulary}: they do not belong together"
        )
    template = ChatTemplate.find(directory, settings.get("template_arguments", {}))
    configured = settings.get("renderer")
    family = configured or MODEL_TYPES.get(str(config.get("model_type")), TEMPLATE)
    context = int(text.get("max_position_embeddings", 32768))
    shown = bool(settings.get("tools_in_prompt", True))
    if family in FAMILIES:
        bridged: BridgedRenderer = _family(str(family))(
            tokenizer, settings, context=context, tools_in_prompt=shown
        )
        if configured is None and template is not None:
            _agree(directory, str(family), bridged, tokenizer, template)
        return bridged
    if family != TEMPLATE:
        raise ConfigurationError(
            f"{directory}: no renderer for the chat format {quoted(family)}; known: {', '.join(sorted([*FAMILIES, TEMPLATE]))}"
        )
    if template is None:
        raise ConfigurationError(
            f"{directory}: model_type {quoted(config.get('model_type'))} is not a known family, and a chat template is missing "
            "(chat_template.jinja, or chat_template in tokenizer_config.json)"
        )
    renderer = TemplateRenderer(
        tokenizer,
        template,
        eos=_end_tokens(directory),
        context=context,
        tools_in_prompt=shown,
        call_syntax=settings.get("call_syntax"),
    )
    _check(directory, renderer, unproven)
    return renderer


def _family(name: str) -> Callable[..., BridgedRenderer]:
    """A family's class, imported when a model needs it: its dependencies take as long to import as the rest of the gateway."""
    module, _, renderer = FAMILIES[name].partition(":")
    found: Callable[..., BridgedRenderer] = getattr(
        import_module(f"orchestrator.gateway.render.{module}"), renderer
    )
    return found


def _check(directory: Path, renderer: TemplateRenderer, unproven: UnprovenTemplate) -> None:
    if renderer.call_syntax == "none":
        log.warning("template.calls_unknown", model=str(directory), consequence="calls are served as text")
    failure = prove(renderer, renderer.whole)
    if failure is None:
        return
    if unproven == UnprovenTemplate.REFUSE:
        raise ConfigurationError(
            f"{directory}: its chat template does not extend conversations: {failure}. Name a renderer in render.json, give the template "
            "arguments that make it keep earlier turns (template_arguments), or set gateway.unproven_template to per_request"
        )
    log.error(
        "template.per_request",
        model=str(directory),
        failure=failure,
        consequence="every request is rendered whole and is a sample of its own: steps do not share what was sampled",
    )
    renderer.extends = False


def _agree(
    directory: Path,
    family: str,
    renderer: BridgedRenderer,
    tokenizer: TokenizerAdapter,
    template: ChatTemplate,
) -> None:
    """Check the family that model_type suggests against the model's own chat template: variants of a type may use another format."""
    from_template = TemplateRenderer(
        tokenizer,
        template,
        eos=_end_tokens(directory),
        context=renderer.context,
        tools_in_prompt=renderer.tools_in_prompt,
    )
    # Without reasoning: many templates drop it from earlier turns, and a family's renderer keeps it on purpose.
    failure = prove(renderer, from_template.whole, sampled=False, thinking=False)
    if failure is not None:
        raise ConfigurationError(
            f"{directory}: model_type says {family}, but its chat template writes otherwise: {failure}. "
            f'Put {{"renderer": "{TEMPLATE}"}} (the template) or {{"renderer": "{family}"}} (the family) into its render.json'
        )


def _end_tokens(directory: Path) -> tuple[int, ...]:
    """The ids that end a generation, from generation_config.json."""
    path = directory / "generation_config.json"
    found = _read_json(path).get("eos_token_id") if path.is_file() else None
    return tuple(found) if isinstance(found, list) else () if found is None else (int(found),)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}
