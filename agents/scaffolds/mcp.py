"""MCP servers of a task, written into a program's own configuration file. The program starts their commands, so they run in the sandbox."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

McpStyle = Literal["codex", "opencode", "mcpServers"]
"""How a program's file names them: the TOML tables of codex, `mcp` of opencode, or the JSON key `mcpServers` of many others."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server that speaks over its standard input and output. `command` is a program, without a shell."""

    name: str
    command: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class McpFile:
    """The configuration file of a program, by its absolute path inside."""

    path: str
    style: McpStyle


def with_servers(body: bytes, style: McpStyle, servers: Sequence[McpServer]) -> bytes:
    """The file with the servers added. ValueError if it is not of the kind that `style` names."""
    if not servers:
        return body
    if style == "codex":
        tables = (
            f"\n[mcp_servers.{_quoted(server.name)}]\ncommand = {_quoted(server.command)}\n"
            f"args = [{', '.join(map(_quoted, server.args))}]\n"
            for server in servers
        )
        return body.rstrip() + b"\n" + "".join(tables).encode()
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("an object is needed in which MCP servers can be named")
    key = "mcp" if style == "opencode" else style
    found[key] = {**found.get(key, {}), **{server.name: _entry(server, style) for server in servers}}
    return json.dumps(found, indent=2, ensure_ascii=False).encode()


def _entry(server: McpServer, style: McpStyle) -> dict[str, Any]:
    if style == "opencode":
        return {"type": "local", "command": [server.command, *server.args], "enabled": True}
    return {"command": server.command, "args": list(server.args)}


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
