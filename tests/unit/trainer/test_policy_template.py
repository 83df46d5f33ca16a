"""The chat format is prefix-extending, and `renderers` renders it token by token."""

import random
from pathlib import Path
from typing import Any

import pytest
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from transformers import AutoTokenizer

from trainer.policy.init import make_policy
from trainer.policy.tokenizer import load_tokenizer

Message = dict[str, Any]
TEXTS = (
    "oak.txt",
    "count the lines",
    "bash: no such file",
    "12\n13",
    "ünïcode 目",
    "a\n\nb",
    "{'x': 1}",
    "<b>",
)


class Adapter:
    """The methods of a tokenizer that `renderers` uses, over `tokenizers.Tokenizer`."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = load_tokenizer(directory)
        self.name_or_path, self.unk_token_id = str(directory), None
        self.eos_token_id = self._tokenizer.token_to_id("<|im_end|>")

    def encode(self, text: str, **_: object) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int], **_: object) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


class KeepsReasoning(Qwen3Renderer):  # type: ignore[misc]
    """A full render that keeps the reasoning of every turn, as the module documentation of the template advises."""

    _last_query_index = staticmethod(lambda messages: -1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), seed=0)


@pytest.fixture(scope="module")
def hugging_face(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


def conversation(seed: int) -> list[Message]:
    """A conversation as a scaffold sends it: tool calls (parallel ones too), answers and new questions."""
    draw = random.Random(seed)
    messages: list[Message] = [{"role": "user", "content": draw.choice(TEXTS)}]
    if draw.random() < 0.3:
        messages.insert(0, {"role": "system", "content": draw.choice(TEXTS)})
    for _ in range(draw.randint(1, 4)):
        calls = [
            {"type": "function", "function": {"name": "bash", "arguments": {"command": draw.choice(TEXTS)}}}
            for _ in range(draw.choice((0, 1, 1, 2)))
        ]
        turn: Message = {
            "role": "assistant",
            "content": "" if calls else draw.choice(TEXTS),
            "tool_calls": calls,
        }
        turn["reasoning_content"] = draw.choice(TEXTS)
        messages.append(turn)
        messages += [{"role": "tool", "content": draw.choice(TEXTS)} for _ in calls]
        if not calls:
            messages.append({"role": "user", "content": draw.choice(TEXTS)})
    return messages


@pytest.mark.parametrize("seed", range(20))
def test_the_template_renders_what_the_renderer_renders(
    directory: Path, hugging_face: Any, seed: int
) -> None:
    messages = conversation(seed)
    ids = KeepsReasoning(Adapter(directory)).render_ids(messages, add_generation_prompt=True)
    text = hugging_face.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert Adapter(directory).decode(ids) == text
    assert hugging_face.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids


@pytest.mark.parametrize("seed", range(20))
def test_the_next_state_extends_the_last_state_and_its_action(directory: Path, seed: int) -> None:
    messages = conversation(seed)
    adapter = Adapter(directory)
    full = KeepsReasoning(adapter)
    bridge = Qwen3Renderer(adapter, Qwen3RendererConfig(thinking_retention="all"))
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        state = full.render_ids(messages[:turn], add_generation_prompt=True)
        whole = full.render_ids(messages[: turn + 1])
        assert whole[: len(state)] == state
        action, newline = whole[len(state) : -1], whole[-1]
        assert action[-1] == adapter.eos_token_id
        assert adapter.decode([newline]) == "\n"
        bridged = bridge.bridge_to_next_turn(state, action, messages[turn + 1 : following])
        assert bridged.token_ids == full.render_ids(messages[:following], add_generation_prompt=True)
        assert bridged.token_ids[: len(state) + len(action)] == state + action


def test_an_action_cut_off_by_length_is_closed_before_the_newline(directory: Path) -> None:
    adapter = Adapter(directory)
    bridge = Qwen3Renderer(adapter, Qwen3RendererConfig(thinking_retention="all"))
    state = bridge.render_ids([{"role": "user", "content": "oak"}], add_generation_prompt=True)
    action = adapter.encode("<think>\noak")
    bridged = bridge.bridge_to_next_turn(state, action, [{"role": "user", "content": "go on"}]).token_ids
    assert bridged[: len(state) + len(action)] == state + action
    assert adapter.decode(bridged[len(state) + len(action) :]).startswith(
        "</think><|im_end|>\n<|im_start|>user\n"
    )


def test_a_sampled_tool_call_parses_to_its_command(directory: Path) -> None:
    adapter = Adapter(directory)
    renderer = Qwen3Renderer(adapter, Qwen3RendererConfig(thinking_retention="all"))
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": "bash", "arguments": {"command": "sed -i 's/oak/elm/' fig.py"}},
    }
    messages: list[Message] = [
        {"role": "user", "content": "oak"},
        {"role": "assistant", "content": "", "reasoning_content": "replace it", "tool_calls": [call]},
    ]
    prompt = renderer.render_ids(messages[:1], add_generation_prompt=True)
    action = renderer.render_ids(messages)[len(prompt) : -1]
    parsed = renderer.parse_response(action, prompt_ids=prompt)
    assert parsed.reasoning_content == "replace it"
    assert [(each.name, each.arguments) for each in parsed.tool_calls] == [
        ("bash", call["function"]["arguments"])
    ]
    assert parsed.content == ""


def test_tools_are_written_into_the_prompt_only_on_request(directory: Path, hugging_face: Any) -> None:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "oak"}]
    without = hugging_face.apply_chat_template(messages, tools=tools, tokenize=False)
    assert without == hugging_face.apply_chat_template(messages, tokenize=False)
    shown = hugging_face.apply_chat_template(messages, tools=tools, tokenize=False, tools_in_prompt=True)
    adapter = Adapter(directory)
    assert shown == adapter.decode(Qwen3Renderer(adapter).render_ids(messages, tools=tools))
