"""A model's own chat template: Jinja, rendered in a sandbox, with the same context as in Hugging Face's libraries."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.contracts.errors import ConfigurationError
from sandboxes.text_files import read_text

# Switches that make templates keep the reasoning of earlier turns. A template ignores names that it does not use.
KEEP_REASONING: dict[str, Any] = {
    "clear_thinking": False,
    "preserve_thinking": True,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}


class TemplateRefused(ValueError):
    """The template raises an error on a conversation. The message is the template's."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks trained text. A rendering contains just its body."""

    tags = {"generation"}  # noqa: RUF012  (the attribute is jinja2's)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. `arguments` are passed on every rendering (render.json: `template_arguments`)."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], arguments: Mapping[str, Any], *, with_tools: str = ""
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self._with_tools = environment.from_string(with_tools) if with_tools else self._template
        except TemplateError as error:
            raise ConfigurationError(f"the chat template of the model cannot be compiled: {error}") from None
        self._context = {**tokens, **KEEP_REASONING, **arguments}

    @classmethod
    def find(cls, directory: Path, arguments: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template of a model directory: chat_template.jinja, else the one in chat_template.json or tokenizer_config.json."""
        config = _object(directory / "tokenizer_config.json")
        found: Any = config.get("chat_template") or _object(directory / "chat_template.json").get(
            "chat_template"
        )
        if (file := directory / "chat_template.jinja").is_file():
            found = read_text(file)
        if not found:
            return None
        by_name: dict[str, str] = {"default": found} if isinstance(found, str) else {}
        if isinstance(found, list):
            by_name = {str(template["name"]): str(template["template"]) for template in found}
        if "default" not in by_name:
            raise ConfigurationError(
                f"{directory}: none of its chat templates is named default: {', '.join(sorted(by_name))}"
            )
        special = {**_object(directory / "special_tokens_map.json"), **config}
        tokens = {
            key: str(value["content"] if isinstance(value, dict) else value)
            for key, value in special.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }
        return cls(by_name["default"], tokens, arguments, with_tools=by_name.get("tool_use", ""))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        asking: bool,
    ) -> str:
        """The text of a conversation; with `asking` it ends in the generation prompt. Raises TemplateRefused."""
        template = self._with_tools if tools else self._template
        try:
            return template.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=asking,
                **self._context,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateRefused(str(error) or type(error).__name__) from None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Write JSON without jinja2's escapes for HTML, as all chat templates expect."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}
