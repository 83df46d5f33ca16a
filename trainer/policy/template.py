r"""The chat format: Qwen's ChatML with Hermes tool calls, reasoning kept in every turn.

    <|im_start|>user\n{task}<|im_end|>\n
    <|im_start|>assistant\n<think>\n{reasoning}\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>\n
    <|im_start|>user\n<tool_response>\n{observation}\n</tool_response>\n<tool_response>\n{another}\n</tool_response><|im_end|>\n
    <|im_start|>assistant\n<think>\n{reasoning}\n</think>\n\n{final answer}<|im_end|>\n

(shown with a line break after each turn; the only line breaks are the `\n`.)

The rules for a gateway that follows it, token by token. The PyPI package `renderers` implements all of them with
`Qwen3Renderer(adapter, Qwen3RendererConfig(thinking_retention="all"))`, `adapter` being `encode`, `decode` and
`convert_tokens_to_ids` over `load_tokenizer(directory)`:

- The generation prompt is `<|im_start|>` `assistant\n`. It does not open the reasoning: the policy samples `<think>` itself,
  so a parser starts in *content*.
- The policy ends a turn with `<|im_end|>` (stop ids: `<|im_end|>`, `<|endoftext|>`). That token belongs to the action. The
  newline after it is not sampled: it is the first token of the next state's suffix. A turn cut off by length has no
  `<|im_end|>`; the next state inserts it before the newline (`bridge_to_next_turn` does).
- The next state = the exact ids of the previous state + the exact sampled ids + (`\n` + the new messages + the generation
  prompt), each piece of text between two special tokens encoded by itself. Nothing sampled is ever encoded again.
- `bridge_to_next_turn` does that for tool results and, with `thinking_retention="all"`, for user messages. A *full* render by
  `Qwen3Renderer` still drops the reasoning before the last user message; to re-render a whole history (a fork that matches
  no recorded step) subclass it with `_last_query_index = staticmethod(lambda messages: -1)`. The template below keeps it.
- Tools are not written into the prompt (render.json: `tools_in_prompt` false): this policy has one tool,
  `bash{command}`. `tools_in_prompt=true` writes them as Qwen3 does. A system message is optional.
- Parsed text may have escapes in the JSON (`\"`, `\\`, `\n`): the arguments are JSON, not raw text.
"""

from __future__ import annotations

from typing import Final

RENDER_FILE: Final = "render.json"
RENDER: Final[dict[str, object]] = {
    "renderer": "qwen3",
    "thinking_retention": "all",
    "tools_in_prompt": False,
    "stop": ["<|im_end|>", "<|endoftext|>"],
}
"""Written next to the weights: the class of `renderers` that implements the format, and its arguments."""

CHAT_TEMPLATE: Final = """\
{%- set show_tools = tools and tools_in_prompt | default(false) %}
{%- if show_tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- (messages[0].content or '') + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content or '' %}
    {%- if message.role == 'system' and loop.first and show_tools %}
    {%- elif message.role == 'user' or message.role == 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
            {%- set content = content.lstrip('\\n') %}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n' if content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""The same as a Jinja template, for every engine and library that reads tokenizer_config.json."""
