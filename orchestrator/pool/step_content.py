"""Content of a step that its readers take for granted: sampling parameters, the reply, the messages that its request added, and the branch.

No digest that a gateway announces covers them, so `pool.ingest` refuses other forms. A key that only a later release knows passes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orchestrator.contracts.events import StepRecorded
from orchestrator.contracts.numbers import INT4
from orchestrator.contracts.quote import quoted
from orchestrator.settings.sampling import SAMPLING_KEYS, checked

_SPELLED: Final = 1e15  # PostgreSQL spells larger whole floats as integers, and JSON then reads other values


def odd_content(event: StepRecorded) -> Iterator[str]:
    """Why readers could not use the content of a step: a clause each; none if they can."""
    yield from _odd_sampling(event.sampling)
    yield from _odd_message(event.reply, "reply")
    for number, message in enumerate(event.appended):
        yield from _odd_message(message, f"appended[{number}]")
    for key in ("near", "turn"):
        value = (event.branch or {}).get(key)
        if value is not None and not _whole(value):
            yield f"branch.{key} is {quoted(value)}, it must be a whole number from 0 on"


def _odd_sampling(sampling: Mapping[str, Any]) -> Iterator[str]:
    try:
        checked({key: value for key, value in sampling.items() if key in SAMPLING_KEYS}, most_seed=2**63 - 1)
    except ValueError as error:
        yield str(error)
    for key in ("scripted", "repetition_stop"):
        if not isinstance(sampling.get(key, False), bool):
            yield f"sampling.{key} must be true or false, got {quoted(sampling[key])}"
    if not _texts(sampling.get("stop", [])):
        yield f"sampling.stop must be a list of texts, got {quoted(sampling['stop'])}"
    if not isinstance(sampling.get("tool_choice", ""), str | dict):
        yield f"sampling.tool_choice must be a text or an object, got {quoted(sampling['tool_choice'])}"
    for key, value in sampling.items():
        if isinstance(value, float) and (abs(value) >= _SPELLED or str(value) == "-0.0"):
            yield f"sampling.{quoted(key)} is {value:g}, which the data pool does not keep as it is"


def _odd_message(message: Mapping[str, Any], name: str) -> Iterator[str]:
    for key in ("role", "content", "reasoning", "sha"):
        if not isinstance(message.get(key), str | None):
            yield f"{name}.{key} must be a text, got {quoted(message[key])}"
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_call, calls))):
        yield f"{name}.tool_calls must be a list of objects with name and arguments, got {quoted(calls)}"
    answers = message.get("answers")
    if answers is not None and not _answers(answers):
        yield f"{name}.answers must name a call by numbers from 0 on, got {quoted(answers)}"
    if not _texts(message.get("left_out") or []):
        yield f"{name}.left_out must be a list of texts, got {quoted(message['left_out'])}"
    tools = message.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(map(_tool, tools))):
        yield f"{name}.tools must be a list of functions, got {quoted(tools)}"


def _call(call: Any) -> bool:
    """`arguments` is any JSON value: what the policy wrote."""
    return (
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and "arguments" in call
        and "function" not in call
    )


def _answers(answers: Any) -> bool:
    return (
        isinstance(answers, dict)
        and _whole(answers.get("call"))
        and _whole(answers.get("back", 0))
        and isinstance(answers.get("name"), str)
    )


def _tool(tool: Any) -> bool:
    """Plain, or in OpenAI's form."""
    return isinstance(tool, dict) and (
        tool.get("type") != "function" or isinstance(tool.get("function"), dict)
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT4
