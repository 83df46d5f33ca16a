"""Model directories as the gateway finds them: small byte-level BPE tokenizers with the special tokens of each family, and chat templates.

As in the published tokenizers, the markers of reasoning and calls are added tokens that are *not* flagged special.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = (
    "How many oaks? Two oaks and an elm.\n\nI count again: the elm is there. Look at the thing, be brief.\n"
    '{"name": "look", "arguments": {"at": "oak", "n": 2}}\nYou are a helpful assistant.\n\n# Tools\n'
    '<invoke name="look">\n<parameter name="at">oak</parameter>\n</invoke>\n<response>oak oak</response>\n<response>elm</response>'
    "\nsystem\nuser\nassistant\nai\ntool\n<function=look>\n<parameter=at>\noak\n</parameter>\n</function>\n"
)
CHATML_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MINIMAX_SPECIAL = ("]~!b[", "]~b]", "[e~[")
MINIMAX_MARKERS = ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>")


def build_tokenizer(special: Sequence[str], markers: Sequence[str]) -> Tokenizer:
    """A byte-level BPE tokenizer whose merges cross the borders that templates draw (`>` and a line break, two line breaks)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(
        [CORPUS, '">\n<', "\n\n", ">The oak", "</response>\n<response>"] * 4, trainer
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    return tokenizer


def write_model(
    directory: Path,
    tokenizer: Tokenizer,
    *,
    model_type: str,
    eos: str,
    template: str | None = None,
    render: dict[str, Any] | None = None,
) -> Path:
    """All files that a gateway reads of a model directory, without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    config = {"model_type": model_type, "vocab_size": size, "max_position_embeddings": 4096}
    (directory / "config.json").write_text(json.dumps(config))
    generation = {"eos_token_id": tokenizer.token_to_id(eos)}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": eos, "bos_token": None, "chat_template": template})
    )
    if render is not None:
        (directory / "render.json").write_text(json.dumps(render))
    return directory


def chatml_model(directory: Path, template: str | None, **options: Any) -> Path:
    """Qwen's tokens, with any template."""
    options = {"model_type": "qwen3", "eos": "<|im_end|>"} | options
    return write_model(
        directory, build_tokenizer(CHATML_SPECIAL, CHATML_MARKERS), template=template, **options
    )


def minimax_model(directory: Path, **options: Any) -> Path:
    """MiniMax-M2's tokens and, by default, its template."""
    options = {"model_type": "minimax_m2", "eos": "[e~[", "template": MINIMAX} | options
    return write_model(directory, build_tokenizer(MINIMAX_SPECIAL, MINIMAX_MARKERS), **options)


IDENTITY = "You are a helpful assistant. Your name is MiniMax-M2.5 and is built by MiniMax."

# The format's facts, in the words of this project. `clear_thinking` (default true) drops reasoning before the last user message.
MINIMAX = (
    """\
{%- macro call_block(calls) -%}
<minimax:tool_call>
{% for one in calls %}{% set f = one.function %}<invoke name="{{ f.name }}">
{% for key, value in f.arguments.items() %}<parameter name="{{ key }}">{{ value if value is string else value | tojson }}</parameter>
{% endfor %}</invoke>
{% endfor %}</minimax:tool_call>
{%- endmacro -%}
{%- set ns = namespace(last=-1, called=false) -%}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
]~!b[]~b]system
{{ messages[0].content if messages[0].role == 'system' else '"""
    + IDENTITY
    + """' }}
{%- if tools %}{{ '\n\n# Tools' }}
You may call one or more tools to assist with the user query.
Here are the tools available in JSONSchema format:

<tools>
{% for tool in tools %}<tool>{{ tool.function | tojson }}</tool>
{% endfor %}</tools>

When making tool calls, use XML format to invoke tools and pass parameters:

<minimax:tool_call>
<invoke name="tool-name-1">
<parameter name="param-key-1">param-value-1</parameter>
<parameter name="param-key-2">param-value-2</parameter>
...
</invoke>
</minimax:tool_call>
{%- endif %}[e~[
{% for message in messages %}
{%- if message.role == 'assistant' %}
    {%- set ns.called = message.tool_calls is defined and message.tool_calls | length > 0 %}
    {{- ']~b]ai\\n' }}
    {%- if message.reasoning_content and (loop.index0 > ns.last or clear_thinking is defined and not clear_thinking) %}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- if ns.called %}{{- '\\n' + call_block(message.tool_calls) }}{% endif %}
    {{- '[e~[\\n' }}
{%- elif message.role == 'tool' %}
    {%- if not ns.called %}{{ raise_exception('a tool message needs a call') }}{% endif %}
    {%- if loop.previtem.role != 'tool' %}{{- ']~b]tool' }}{% endif %}
    {{- '\\n<response>' + message.content + '</response>' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '[e~[\\n' }}{% endif %}
{%- elif message.role == 'user' %}
    {{- ']~b]user\\n' + message.content + '[e~[\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- ']~b]ai\\n<think>\\n' }}{% endif %}"""
)

_CHATML_START = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') }}
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first and tools %}
{%- elif message.role == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
"""
_CHATML_CALLS = """\
    {%- for call in message.tool_calls or [] %}
        {{- '\\n' if message.content or not loop.first }}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
"""
_CHATML_END = """\
    {{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
    {{- '<|im_start|>user' if loop.previtem.role != 'tool' }}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
{%- else %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

# Qwen3's format, reasoning kept in every turn.
CHATML_KEEPS = (
    _CHATML_START
    + """\
    {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
    {{- message.content }}
"""
    + _CHATML_CALLS
    + _CHATML_END
)
# The same, reasoning dropped before the last user message, as most published templates do.
CHATML_DROPS = CHATML_KEEPS.replace(
    "{%- if message.reasoning_content %}", "{%- if message.reasoning_content and loop.index0 > ns.last %}"
)
# The content contains the reasoning, and the template cuts it out of earlier turns.
CHATML_CUTS = (
    _CHATML_START
    + "    {{- message.content.split('</think>')[-1].lstrip('\\n') if loop.index0 < ns.last else message.content }}\n"
    + _CHATML_CALLS
    + _CHATML_END
)
# No reasoning, calls as Qwen3-Coder writes them.
CHATML_FUNCTION = (
    _CHATML_START
    + "    {{- message.content }}\n"
    + """\
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
"""
    + _CHATML_END
)
