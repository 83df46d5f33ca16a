"""Calls of OpenAI's typed tools that a client runs, as items of the Responses wire: writing them in a reply, reading them in a history.

| tool | item | holds | result |
|---|---|---|---|
| `local_shell` | `local_shell_call` | `action` of one command | `output`, under the call's id as `id` or `call_id` |
| `shell` | `shell_call` | `action` of commands | a list of stdout, stderr and outcome |
| `apply_patch` | `apply_patch_call` | `operation` | `status` and `output` |
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.gateway.messages.content import flatten
from orchestrator.gateway.messages.turns import call_id, too_deep
from orchestrator.gateway.messages.typed_tools import RESPONSES

Item = dict[str, Any]

PREFIXES: Final = {"local_shell": "lsh", "shell": "sh", "apply_patch": "apc"}
"""Prefixes of the ids of their items."""
CALLS: Final = {f"{tool}_call": tool for tool in PREFIXES}
OUTPUTS: Final = {f"{tool}_call_output": tool for tool in PREFIXES}
_ITEM_ID = re.compile(rf"(?:fc|ctc|{'|'.join(PREFIXES.values())})_s([0-9]{{1,9}})_([0-9]{{1,6}})")
_NAMED_BY_ID: Final = ("function_call", "custom_tool_call", "local_shell_call", "local_shell_call_output")
_KEYS: Final[Mapping[str, tuple[str, Mapping[str, type]]]] = {
    "local_shell": ("command", {"timeout_ms": int, "working_directory": str}),
    "shell": ("commands", {"timeout_ms": int, "max_output_length": int}),
}
_RAN: Final = {"stdout", "stderr", "outcome"}
_OPERATIONS = {"create_file": True, "update_file": True, "delete_file": False}  # whether it has a diff


def item_of(tool: str, given: Mapping[str, Any]) -> Item | None:
    """The fields of the typed item for a call with these arguments; None if the arguments do not fit the type."""
    if tool == "apply_patch":
        return _patch(given)
    key, settings = _KEYS[tool]
    commands = given.get(key)
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        return None
    action: Item = {key: commands}
    for name, kind in settings.items():
        value = given.get(name)
        integral = isinstance(value, float) and value.is_integer()
        action[name] = int(value) if integral and value is not None else value
        if not isinstance(action[name], kind | None) or isinstance(value, bool):
            return None
    if not set(given) <= set(action):
        return None
    if tool == "shell":
        return {"action": action, "environment": {"type": "local"}}
    # The settings of a local_shell may be absent and not null, unlike those of a shell.
    chosen = {name: value for name, value in action.items() if value is not None}
    return {"action": {"type": "exec", "env": {}, **chosen}}


def fits_item(name: str, given: Mapping[str, Any], parameters: Mapping[str, Any] | None) -> bool:
    """Whether a call of an offered tool with these parameters can be served as the item of its type; True for a tool without such a type."""
    known = RESPONSES.get(name)
    return known is None or parameters != known[2] or item_of(name, given) is not None


def _patch(given: Mapping[str, Any]) -> Item | None:
    operation = given.get("operation")
    if len(given) != 1 or not isinstance(operation, dict):
        return None
    kind = operation.get("type")
    if not isinstance(kind, str) or kind not in _OPERATIONS:
        return None
    # A deletion has no diff: clients leave it out when they replay the call.
    needed = {"type", "path", "diff"} if _OPERATIONS[kind] else {"type", "path"}
    if set(operation) != needed or not all(isinstance(value, str) for value in operation.values()):
        return None
    return {"operation": operation}


def arguments_of(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call in a history; None for a call that a provider ran, or that has no content."""
    tool = CALLS[item["type"]]
    if tool == "apply_patch":
        operation = item.get("operation")
        if not isinstance(operation, dict) or not operation:
            return None
        return {
            "operation": {
                key: operation[key] for key in ("type", "path", "diff") if isinstance(operation.get(key), str)
            }
        }
    action, environment = item.get("action"), item.get("environment")
    if not isinstance(action, dict) or not isinstance(action.get(_KEYS[tool][0]), list):
        return None
    if isinstance(environment, dict) and environment.get("type") != "local":
        return None
    known = (_KEYS[tool][0], *_KEYS[tool][1])
    arguments = {key: action[key] for key in known if action.get(key) is not None}
    return None if too_deep(arguments) else arguments


def answered(item: Mapping[str, Any]) -> object:
    """The id of a call of the history, or of the call that a result answers. A call without `call_id`, and the result of a local_shell, may name
    it by `id`."""
    identifier = item.get("call_id")
    if identifier is None and item.get("type") in _NAMED_BY_ID:
        identifier = item.get("id")
    found = _ITEM_ID.fullmatch(identifier) if isinstance(identifier, str) else None
    return call_id(int(found[1]), int(found[2])) if found is not None else identifier


def result_of(item: Mapping[str, Any]) -> Any:
    """The content of a result of the history, as text if it has the form of its type."""
    output = item.get("output")
    match OUTPUTS.get(str(item.get("type"))):
        case "shell" if isinstance(output, list) and any(
            _RAN & command_output.keys() for command_output in output if isinstance(command_output, dict)
        ):
            return "\n".join(
                _ran(command_output) for command_output in output if isinstance(command_output, dict)
            )
        case "apply_patch":
            status = item.get("status")
            text, _ = flatten(output, past=True)
            if status == "failed":
                return f"Error: {text or 'the patch could not be applied'}"
            return text or (status if isinstance(status, str) else None)
        case _:
            return output


def _ran(one: Mapping[str, Any]) -> str:
    """The output of one shell command."""
    parts = [
        one[key].rstrip("\n")
        for key in ("stdout", "stderr")
        if isinstance(one.get(key), str) and one[key].strip()
    ]
    outcome = one.get("outcome")
    if isinstance(outcome, dict) and outcome.get("type") == "timeout":
        parts.append("[timed out]")
    elif isinstance(outcome, dict) and outcome.get("exit_code") not in (0, None):
        parts.append(f"[exit code {str(outcome['exit_code'])[:20]}]")
    return "\n".join(parts)
