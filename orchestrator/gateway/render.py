"""From messages to token ids, the policy's way. Behind a small port, so that nothing else knows a chat template.

A state is put together on ids: the parent's exact full ids, then only what the new messages add. Nothing sampled is ever encoded again.
The rules of one model family (which class of the `renderers` package, what stands in the prompt) come from `render.json` in the
model directory; without it they follow from `model_type` in config.json.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from tokenizers import Tokenizer

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.gateway.messages import Turn

Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Markers:
    """Token ids that structure an action."""

    think_open: int
    think_close: int
    call_open: int
    call_close: int


class Renderer(Protocol):
    """One policy's chat format. Ids are plain lists of int."""

    stop_ids: frozenset[int]
    markers: Markers
    context: int  # tokens that the model can attend to
    tools_in_prompt: bool
    starts_in_thinking: bool  # whether the generation prompt ends inside the reasoning

    def opening(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[int]:
        """A conversation's first turns (none of the assistant) and the generation prompt."""

    def suffix(self, ended: bool, turns: Sequence[Turn]) -> list[int]:
        """What follows an action: its close when it was cut off (`ended` is False), the boundary, `turns` (none of the assistant),
        the generation prompt."""

    def action(self, turn: Turn) -> list[int]:
        """The ids that the policy would sample to say `turn`, with the end token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""


class TokenizerAdapter:
    """What `renderers` asks of a tokenizer, over `tokenizers.Tokenizer`. Special-token strings inside a text stay text."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigurationError(
                f"the model directory {directory} has no tokenizer.json: the gateway needs it to make token ids"
            )
        self.inner = Tokenizer.from_file(str(path))
        self.inner.encode_special_tokens = True
        self.name_or_path = str(directory)
        self.unk_token_id = None
        self.size: int = self.inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, **_: object) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return str(self.inner.decode(list(ids), skip_special_tokens=False))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found: int | None = self.inner.token_to_id(token)
        return found


class _KeepsReasoning(Qwen3Renderer):  # type: ignore[misc]
    """A render that keeps the reasoning of every turn, not only of those after the last user message."""

    _last_query_index = staticmethod(lambda messages: -1)


class QwenRenderer:
    """Qwen3's ChatML with Hermes tool calls and interleaved thinking."""

    starts_in_thinking = False

    def __init__(self, tokenizer: TokenizerAdapter, *, context: int, tools_in_prompt: bool) -> None:
        self.context, self.tools_in_prompt = context, tools_in_prompt
        self._tokenizer = tokenizer
        self._inner = _KeepsReasoning(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
        self._end = self._token("<|im_end|>")
        self.stop_ids = frozenset(self._inner.get_stop_token_ids())
        self.markers = Markers(
            *(self._token(text) for text in ("<think>", "</think>", "<tool_call>", "</tool_call>"))
        )
        # A dummy base: what the bridge adds to it is what it adds to any turn that ended.
        self._base = list(self._inner.render_ids([{"role": "user", "content": "x"}]))
        with_prompt = self._inner.render_ids([{"role": "user", "content": "x"}], add_generation_prompt=True)
        self._prompt = list(with_prompt[len(self._base) :])
        self._boundary = tokenizer.encode("\n")

    def _token(self, text: str) -> int:
        found = self._tokenizer.convert_tokens_to_ids(text)
        if found is None:
            raise ConfigurationError(
                f"the tokenizer of {self._tokenizer.name_or_path} has no token {text}: it is not of this chat format"
            )
        return found

    def opening(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[int]:
        shown = list(tools) if tools and self.tools_in_prompt else None
        if not turns:
            return list(self._prompt)
        return list(
            self._inner.render_ids(
                [_message(turn) for turn in turns], tools=shown, add_generation_prompt=True
            )
        )

    def suffix(self, ended: bool, turns: Sequence[Turn]) -> list[int]:
        close = [] if ended else [self._end]
        if not turns:
            return [*close, *self._boundary, *self._prompt]
        bridged = self._inner.bridge_to_next_turn(self._base, [self._end], [_message(turn) for turn in turns])
        assert bridged is not None, "the bridge takes every turn but the assistant's"
        base = [*self._base, self._end]
        assert bridged.token_ids[: len(base)] == base
        return [*close, *bridged.token_ids[len(base) :]]

    def action(self, turn: Turn) -> list[int]:
        question = {"role": "user", "content": "x"}
        start = len(self._base) + len(self._prompt)
        # A turn after it, since a last turn without reasoning would get an empty block of it.
        rendered = self._inner.render_ids([question, _message(turn), question])
        return list(rendered[start : rendered.index(self._end, start) + 1])

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)


def _message(turn: Turn) -> dict[str, Any]:
    """The chat-form message that the templates take: arguments as mappings, content never null."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.role == "assistant":
        message["reasoning_content"] = turn.reasoning or ""
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.mapping()}}
            for call in turn.calls
        ]
    return message


FAMILIES = {"qwen3": QwenRenderer}


def load_renderer(directory: Path) -> Renderer:
    """The renderer of a model directory. ConfigurationError when a file is missing, vocabularies differ or nobody speaks the format."""
    tokenizer = TokenizerAdapter(directory)
    config = _read_json(directory / "config.json")
    render = _read_json(directory / "render.json") if (directory / "render.json").is_file() else {}
    family = render.get("renderer", config.get("model_type"))
    if family not in FAMILIES:
        raise ConfigurationError(
            f"{directory}: no renderer for the chat format {family!r}; known: {', '.join(sorted(FAMILIES))}"
        )
    vocabulary = config.get("vocab_size", tokenizer.size)
    if tokenizer.size > vocabulary:
        raise ConfigurationError(
            f"{directory}: the tokenizer makes {tokenizer.size} ids and the model knows {vocabulary}: they do not belong together"
        )
    return FAMILIES[family](
        tokenizer,
        context=int(config.get("max_position_embeddings", 32768)),
        tools_in_prompt=bool(render.get("tools_in_prompt", True)),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}
