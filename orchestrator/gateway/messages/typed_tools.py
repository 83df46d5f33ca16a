"""The tools that a wire identifies by its own types and that the client runs: names, descriptions and published parameters."""

from collections.abc import Mapping
from typing import Any, Final

_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_LINES = {"type": "array", "items": _INTEGER}
_FILE = {
    "path": _STRING,
    "file_text": _STRING,
    "old_str": _STRING,
    "new_str": _STRING,
    "insert_line": _INTEGER,
}
_FROM = "[first, last]; -1: the end"


def _of(required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def _command(*names: str) -> dict[str, Any]:
    return {**_STRING, "enum": list(names)}


_BASH = _of("", command=_STRING, restart={"type": "boolean"})
_OLD_EDITOR = _of(
    "command path",
    command=_command("view", "create", "str_replace", "insert", "undo_edit"),
    **_FILE,
    view_range=_LINES,
)
_EDITOR = _of(
    "command path",
    command=_command("view", "create", "str_replace", "insert"),
    **_FILE,
    insert_text=_STRING,
    view_range=_LINES,
)
_MEMORY = _of(
    "command",
    command=_command("view", "create", "str_replace", "insert", "delete", "rename"),
    **_FILE,
    insert_text=_STRING,
    old_path=_STRING,
    new_path=_STRING,
    view_range=_LINES,
)
_RUN = "Run a command in a bash session that stays; `restart` begins it again."
_EDIT = f"View, create and edit files. view: `path`, `view_range` ({_FROM}); create: `file_text`; str_replace: `old_str`, `new_str`; "
_KEEP = (
    f"View, create and edit files below /memories, which outlive this conversation. view: `path`, `view_range` ({_FROM}); create: `file_text`; "
    "str_replace: `old_str`, `new_str`; insert: `insert_line`, `insert_text`; delete: `path`; rename: `old_path`, `new_path`."
)
_LATER = _EDIT + "insert: `insert_text` after the line `insert_line`."
_EARLIER = _EDIT + "insert: `new_str` after the line `insert_line`; undo_edit takes back the last edit."

# Type → (name, description, parameters). The wire prescribes the names, and its clients run the tools under them.
ANTHROPIC: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "bash_20241022": ("bash", _RUN, _BASH),
    "bash_20250124": ("bash", _RUN, _BASH),
    "text_editor_20241022": ("str_replace_editor", _EARLIER, _OLD_EDITOR),
    "text_editor_20250124": ("str_replace_editor", _EARLIER, _OLD_EDITOR),
    "text_editor_20250429": ("str_replace_based_edit_tool", _LATER, _EDITOR),
    "text_editor_20250728": ("str_replace_based_edit_tool", _LATER, _EDITOR),
    "memory_20250818": ("memory", _KEEP, _MEMORY),
}
RESPONSES: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "local_shell": (
        "local_shell",
        "Run a program; `command` is its name and arguments.",
        _of("command", command={"type": "array", "items": _STRING}, timeout_ms=_INTEGER, working_directory=_STRING),
    ),
    "shell": (
        "shell",
        "Run shell commands, one after the other.",
        _of("commands", commands={"type": "array", "items": _STRING}, timeout_ms=_INTEGER, max_output_length=_INTEGER),
    ),
    "apply_patch": (
        "apply_patch",
        "Create, update or delete a file; `diff` is in the V4A format: lines that begin with a space, + or -, below lines that begin with @@.",
        _of(
            "operation",
            operation=_of("type path", type=_command("create_file", "update_file", "delete_file"), path=_STRING, diff=_STRING),
        ),
    ),
}  # fmt: skip
