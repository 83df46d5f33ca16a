"""Every documented field of a request, wire by wire, and its treatment. ops/guides/wires.md contains this table.

A field that its wire does not document is refused if another wire refuses it, or honours it and this one has a field or a form for it. The gateway
takes any other field without effect, and counts it; the native route refuses it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orchestrator.contracts.quote import MAX_QUOTED, quoted
from orchestrator.gateway.problems import bad_request


class Treatment(StrEnum):
    """The treatment of a field."""

    HONOURED = "honoured"
    RUN = "the run's"  # the run's own sampling is used and recorded
    STRIPPED = "left out, counted"  # it would bypass the sandbox
    TAKEN = "taken, without effect"  # a hint or a label: it changes no reply
    REFUSED = "refused"  # with 400, unless its value requests nothing


@dataclass(frozen=True, slots=True)
class Field:
    """`why`: in a few words. `neutral`: values of a refused field that request nothing; null and empty values never request anything."""

    treatment: Treatment
    why: str
    neutral: tuple[Any, ...] = ()


def _all(treatment: Treatment, why: str, names: str) -> dict[str, Field]:
    return {name: Field(treatment, why) for name in names.split()}


def _refused(why: str, names: str, *neutral: Any) -> dict[str, Field]:
    return {name: Field(Treatment.REFUSED, why, neutral) for name in names.split()}


_SAMPLING = "the run's sampling holds"
_PARTLY = "the policy is sampled freely: ask for the form in the prompt, and check it"
_TEMPLATE = "the gateway renders by the policy's own chat template: see template_arguments in render.json"
_ENGINE = "it changes what is sampled or when it ends"
_LABEL = "a label of the client's"
_RAW = "prompts come as messages, and replies as the policy's text, reasoning and calls"
_SPEED = "it is about cost or speed at a provider"
_HINT = "a hint: the policy decides how long it thinks and writes"
_THINKS = "the policy's chat template decides whether it thinks, and what it thought is served"
_PROVIDERS = "a provider's servers would run its tools: offer function tools that your client runs"
_PREFILL = "an answer is not continued: end with a message of the user or a tool's result"
_OTHER_OUTPUT = "it is a field of the Responses wire, and this wire serves all that it has"
_LIMIT = "the limit of a reply is max_tokens here, and on the Responses wire max_output_tokens"
_SHORTENS = "a history is shortened by its client alone: the refusal of a full context says so"
_SEVERAL = "ask several times instead: at once with other metadata in each body, since equal bodies in flight share a reply"
_TEXT = {"type": "text"}

_ENGINES = {  # of vLLM, SGLang and others, which clients send in an extra body
    **_all(Treatment.RUN, _SAMPLING, "top_k min_p top_a typical_p repetition_penalty length_penalty"),
    **_refused(_PREFILL, "continue_final_message echo suffix prefix prefill partial assistant_prefix", False),
    **_refused(_PREFILL, "add_generation_prompt", True),
    **_refused(_TEMPLATE, "chat_template chat_template_kwargs documents"),
    **_refused(_PARTLY, "guided_json guided_regex guided_choice guided_grammar structured_outputs json_schema regex ebnf grammar structural_tag"),
    **_refused(_PARTLY, "format"),
    **_refused(_ENGINE, "ignore_eos include_stop_str_in_output use_beam_search min_tokens min_new_tokens", False, 0),
    **_refused(_ENGINE, "stop_token_ids stop_regex bad_words allowed_token_ids truncate_prompt_tokens no_stop_trim", False),
    **_refused(_ENGINE, "logits_processors custom_logit_processor", False),
    **_refused(_RAW, "prompt_token_ids input_ids input_embeds session_params return_hidden_states", False),
    **_refused(_RAW, "separate_reasoning skip_special_tokens spaces_between_special_tokens", True),
    **_refused(_LIMIT, "max_new_tokens n_predict num_predict max_length", -1),
    **_all(Treatment.TAKEN, _THINKS, "enable_thinking include_reasoning reasoning_format thinking_budget"),
    **_refused("it is a parameter of client libraries: send its fields in the body itself", "extra_body"),
    **_refused(_SEVERAL, "best_of", 1),
    **_refused("the policy's own weights answer, and no adapter", "lora_path lora_request adapter_id"),
    **_refused("token ids and logprobs are recorded, and not served", "prompt_logprobs return_token_ids return_tokens_as_token_ids", False, 0),
}  # fmt: skip

CHAT: dict[str, Field] = {
    **_all(Treatment.HONOURED, "", "messages model tools tool_choice parallel_tool_calls"),
    **_all(Treatment.HONOURED, "", "max_tokens max_completion_tokens stop stream stream_options"),
    **_all(Treatment.HONOURED, "the first form of tools: the reply has a function_call", "functions function_call"),
    **_all(Treatment.RUN, _SAMPLING, "temperature top_p frequency_penalty presence_penalty seed"),
    **_all(Treatment.STRIPPED, "a provider's own tool", "web_search_options plugins search_parameters enable_search"),
    **_all(Treatment.TAKEN, _LABEL, "metadata user safety_identifier store"),
    **_all(Treatment.TAKEN, _SPEED, "service_tier prompt_cache_key prompt_cache_options prompt_cache_retention prediction"),
    **_all(Treatment.TAKEN, "a provider's own check", "moderation"),
    **_all(Treatment.TAKEN, _HINT, "reasoning_effort verbosity"),
    **_all(Treatment.TAKEN, _THINKS, "reasoning thinking"),
    **_refused("no reply goes on without its client: stream it instead", "deferred", False),
    **_refused("no text is added to a prompt: write it into the system message", "safe_prompt", False),
    **_refused(_SHORTENS, "transforms"),
    **_refused(_SEVERAL, "n", 1),
    **_refused("they are recorded, and not served", "logprobs top_logprobs", False, 0),
    **_refused("its token ids are another model's", "logit_bias"),
    **_refused(_PARTLY, "response_format", _TEXT),
    **_refused("the policy writes text only", "modalities", ["text"]),
    **_refused("the policy writes text only", "audio"),
    **_refused(_OTHER_OUTPUT, "include"),
    **_ENGINES,
}  # fmt: skip

RESPONSES: dict[str, Field] = {
    **_all(Treatment.HONOURED, "", "input model instructions tools tool_choice parallel_tool_calls"),
    **_all(Treatment.HONOURED, "", "max_output_tokens stream stream_options stop"),
    **_all(Treatment.HONOURED, "of this session, also after a restart", "previous_response_id"),
    **_all(Treatment.TAKEN, "each response is kept until its session ends", "store"),
    **_all(Treatment.HONOURED, "reasoning.encrypted_content; what a provider's own tools would add is left out", "include"),
    **_all(Treatment.RUN, _SAMPLING, "temperature top_p"),
    **_all(Treatment.TAKEN, _LABEL, "metadata client_metadata user safety_identifier access_programs"),
    **_all(Treatment.TAKEN, _SPEED, "service_tier prompt_cache_key prompt_cache_options prompt_cache_retention background_options"),
    **_all(Treatment.TAKEN, "a provider's own check", "moderation"),
    **_all(Treatment.TAKEN, _HINT, "reasoning text.verbosity personality"),
    **_all(Treatment.TAKEN, "of a provider's own tools, which are left out", "max_tool_calls image"),
    **_all(Treatment.TAKEN, "a history is shortened by its client alone", "context_management"),
    **_all(Treatment.HONOURED, "its fields stand below", "text"),
    **_all(Treatment.TAKEN, _THINKS, "thinking"),
    **_refused(_PARTLY, "text.type text.schema text.json_schema text.response_format", "text"),
    **_refused("no response goes on without its client: stream the reply instead", "background", False),
    **_refused("conversations are not kept: send previous_response_id, or the whole conversation as input", "conversation"),
    **_refused("prompts of a provider's are not kept: send the text", "prompt"),
    **_refused(_SHORTENS, "truncation", "disabled"),
    **_refused(_PARTLY, "text.format", _TEXT),
    **_refused("they are recorded, and not served", "top_logprobs", 0),
    **_ENGINES,
}  # fmt: skip

ANTHROPIC: dict[str, Field] = {
    **_all(Treatment.HONOURED, "", "max_tokens messages model stop_sequences stream system tool_choice tools"),
    **_all(Treatment.HONOURED, "disabled hides what was thought, display omitted its text", "thinking"),
    **_all(Treatment.HONOURED, "its fields stand below", "output_config"),
    **_all(Treatment.RUN, _SAMPLING, "temperature top_k top_p"),
    **_all(Treatment.STRIPPED, "tools outside the sandbox", "mcp_servers"),
    **_all(Treatment.TAKEN, "a provider's own sandbox, whose tools are left out", "container"),
    **_all(Treatment.TAKEN, _LABEL, "metadata store user_profile_id workspace_id betas diagnostics thread"),
    **_all(Treatment.TAKEN, _SPEED, "service_tier speed cache_control inference_geo billing_policy fallbacks fallback_credit_token"),
    **_all(Treatment.TAKEN, _HINT, "output_config.effort output_config.task_budget thinking.budget_tokens thinking.block_binding"),
    **_all(Treatment.TAKEN, "a history is shortened by its client alone", "context_management compaction"),
    **_all(Treatment.TAKEN, "every stream ends with its usage", "stream_options"),
    **_refused(_PARTLY, "output_config.format output_config.type output_config.schema output_config.json_schema output_format"),
    **_refused(_OTHER_OUTPUT, "include"),
    **_ENGINES,
}  # fmt: skip

NATIVE: dict[str, Field] = _all(
    Treatment.HONOURED, "", "agent call messages tools max_tokens stop replace_reason"
)

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "native": NATIVE,
}


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_OWN: Mapping[str, Mapping[str, str]] = {
    **{name: {"chat": "max_completion_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"} for name in _LIMITS},
    **{name: {"chat": "messages", "responses": "input", "anthropic": "messages"} for name in ("messages", "input")},
    **{name: {"chat": "a system message", "responses": "instructions", "anthropic": "system"} for name in ("instructions", "system")},
    **{name: {"chat": "stop", "responses": "stop", "anthropic": "stop_sequences"} for name in ("stop", "stop_sequences")},
    "text": {"chat": "verbosity", "anthropic": "output_config.effort"},
    "output_config": {"chat": "reasoning_effort", "responses": "reasoning"},
    "parallel_tool_calls": {"anthropic": "tool_choice.disable_parallel_tool_use"},
    "functions": {"responses": "tools", "anthropic": "tools"},
    "function_call": {"responses": "tool_choice", "anthropic": "tool_choice"},
    "previous_response_id": {"chat": "messages, the whole conversation", "anthropic": "messages, the whole conversation"},
}  # fmt: skip
"""Fields that decide the policy's input, its possible calls or when a reply ends: their equivalents on the other wires."""
_BODIES: Mapping[str, type] = {
    "parallel_tool_calls": bool,
    "functions": list,
    "include": list,
    "stream": bool,
    "stream_options": dict,
    "text": dict,
    "output_config": dict,
    "model": str,
    "agent": str,
    "call": int,
    "replace_reason": str,
}
"""The JSON type of fields whose value decides how a reply is written."""
_INNER: Mapping[str, tuple[str, type]] = {
    "thinking": ("anthropic", dict),
    "stream_options.include_usage": ("chat", bool),
}
"""The same for nested fields, with their wire."""
_VALUES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "thinking.type": ("anthropic", ("enabled", "adaptive", "disabled", "between_tools")),
    "thinking.display": ("anthropic", ("summarized", "updates", "omitted")),
}
"""The only valid values of fields, with their wire."""
_INCLUDED = (
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})
"""Values of a field that request nothing."""
_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "an integer",
    dict: "an object",
    list: "a list",
    str: "a string",
}


def _of_others(wire: str) -> dict[str, Field]:
    """Fields that this wire does not document but another wire does, refused."""
    other_wires = [
        (wire_name, fields) for wire_name, fields in FIELDS.items() if wire_name not in (wire, "native")
    ]
    found = {}
    for _, fields in other_wires:
        for name, field in fields.items():
            if field.treatment is Treatment.REFUSED:
                found[name] = field
            elif field.treatment is Treatment.STRIPPED:
                found[name] = Field(Treatment.REFUSED, _PROVIDERS, (False,))
            elif name in _OWN:
                found[name] = Field(
                    Treatment.REFUSED,
                    f"it is a field of another wire, use {_OWN[name].get(wire)} on this one",
                )
    return {name: field for name, field in found.items() if name.partition(".")[0] not in FIELDS[wire]}


_CHECKED = {
    wire: fields if wire == "native" else {**fields, **_of_others(wire)} for wire, fields in FIELDS.items()
}


def unknown(wire: str, body: Mapping[str, Any]) -> list[str]:
    """The fields of a body that the table of its wire lacks and that request something."""
    known = {name.partition(".")[0] for name in _CHECKED[wire]}
    return [name for name, value in body.items() if name not in known and value not in _NOTHING]


def check_fields(wire: str, body: Mapping[str, Any], place: str = "") -> None:
    """Raise Problem 400 naming a field that cannot be honoured, or that has a value of the wrong type. `place`: it precedes the names of
    the fields, if `body` is not the whole body."""
    if wire == "native" and (names := unknown(wire, body)):
        name = names[0]  # any text, of any length
        shown = name if name.isidentifier() and len(name) <= MAX_QUOTED else quoted(name)
        raise bad_request(f"{shown} is not a field of this route: it takes {', '.join(NATIVE)}", shown)
    for name, kind in _BODIES.items():
        honoured = name in FIELDS[wire] and FIELDS[wire][name].treatment is Treatment.HONOURED
        if honoured and not isinstance(body.get(name), kind | None):
            raise bad_request(f"{place}{name} must be {_KINDS[kind]}", f"{place}{name}")
    _check_inner(wire, body)
    for name, field in _CHECKED[wire].items():
        if field.treatment is Treatment.REFUSED and not _asks_nothing(_value(name, body), field):
            raise bad_request(f"{place}{name} is not supported: {field.why}", f"{place}{name}")


def _check_inner(wire: str, body: Mapping[str, Any]) -> None:
    """The same for nested fields."""
    for name, (field_wire, kind) in _INNER.items():
        if wire == field_wire and not isinstance(_value(name, body), kind | None):
            raise bad_request(f"{name} must be {_KINDS[kind]}", name)
    for name, (field_wire, values) in _VALUES.items():
        value = _value(name, body) if wire == field_wire else None
        if value is not None and value not in values:
            raise bad_request(f"{name} must be one of {', '.join(values)}", name)
    if wire == "responses":
        check_included(body.get("include") or ())


def check_included(wanted: Iterable[Any]) -> None:
    """Raise Problem 400 for the first value of `include` that is unknown, or that is not served."""
    for included in wanted:
        if included == "message.output_text.logprobs":
            raise bad_request("include: logprobs are recorded, and not served", "include")
        if included not in _INCLUDED:
            raise bad_request(
                f"include: {quoted(str(included))} is not known here; known are {', '.join(_INCLUDED)}",
                "include",
            )


def stripped(wire: str, body: Mapping[str, Any]) -> int:
    """Number of parts of a body that are left out because they would bypass the sandbox."""
    return sum(
        _count(body.get(name))
        for name, field in FIELDS[wire].items()
        if field.treatment is Treatment.STRIPPED
    )


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else int(value is not None and value is not False)


def _asks_nothing(value: Any, field: Field) -> bool:
    return value in _NOTHING or value in field.neutral


def _value(name: str, body: Mapping[str, Any]) -> Any:
    outer, _, inner = name.partition(".")
    value = body.get(outer)
    return value.get(inner) if inner and isinstance(value, dict) else None if inner else value


def described() -> Iterator[tuple[str, Treatment, str, list[str]]]:
    """(wire, treatment, why, names) of all fields, similar ones together: the rows of the guide's table."""
    for wire, fields in FIELDS.items():
        rows: dict[tuple[Treatment, str], list[str]] = {}
        for name, field in fields.items():
            rows.setdefault((field.treatment, field.why), []).append(name)
        for treatment in Treatment:
            for (row_treatment, reason), names in rows.items():
                if row_treatment is treatment:
                    yield wire, treatment, reason, names
