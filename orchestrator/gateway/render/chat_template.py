"""A model's own chat template: Jinja, rendered in a sandbox, with what Hugging Face's libraries put into its context."""

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

# Switches by which templates are told to keep the reasoning of earlier turns; one that does not know a name ignores it.
KEEP_REASONING: dict[str, Any] = {
    "clear_thinking": False,
    "preserve_thinking": True,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}


class TemplateRefused(ValueError):
    """The template raises on a conversation; the message is its own."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what is trained on; for a rendering it is its body."""

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
            found = file.read_text(encoding="utf-8")
        if not found:
            return None
        named: dict[str, str] = {"default": found} if isinstance(found, str) else {}
        if isinstance(found, list):
            named = {str(one["name"]): str(one["template"]) for one in found}
        if "default" not in named:
            raise ConfigurationError(
                f"{directory}: none of its chat templates is named default: {', '.join(sorted(named))}"
            )
        special = {**_object(directory / "special_tokens_map.json"), **config}
        tokens = {
            key: str(value["content"] if isinstance(value, dict) else value)
            for key, value in special.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }
        return cls(named["default"], tokens, arguments, with_tools=named.get("tool_use", ""))

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
    """Without jinja2's escapes for HTML, as every chat template means it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}
