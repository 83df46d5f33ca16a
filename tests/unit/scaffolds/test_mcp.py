"""MCP servers in the configuration files of programs."""

import json
import tomllib

import pytest
from scaffolds.base import AgentLimits, Endpoint, TaskView
from scaffolds.find import find
from scaffolds.mcp import McpServer, with_servers

SERVERS = (
    McpServer("words", "/app/server", ('a "b"', "\\u00e9\\x7f", "c\\\\d")),
    McpServer("2-plain", "python3"),
)
LIMITS = AgentLimits(turns=4, context=1000, tool_timeout_s=1.0, timeout_s=1.0)
ENDPOINT = Endpoint("http://gateway/s/1/v1", "secret", "/run/penstock/gateway.sock")
FILES = {
    "codex": "/home/agent/.codex/config.toml",
    "opencode": "/home/agent/.penstock/opencode.json",
    "opencode-anthropic": "/home/agent/.penstock/opencode.json",
    "opencode-responses": "/home/agent/.penstock/opencode.json",
    "qwen-code": "/home/agent/.qwen/settings.json",
}


@pytest.mark.parametrize("name", FILES)
def test_a_preset_writes_the_servers_into_its_own_file_and_leaves_the_rest(name: str) -> None:
    scaffold = find(name)
    assert scaffold.manifest.mcp and scaffold.manifest.skills.startswith("/home/agent/")
    black = scaffold.black()  # it has a port of its own
    read = tomllib.loads if name == "codex" else json.loads

    def configured(*servers: McpServer) -> dict[str, object]:
        task = TaskView(name="t", domain="general", instruction="x", mcp_servers=servers)
        return read(black.files(task, ENDPOINT, LIMITS)[FILES[name]].data.decode())

    plain, given = configured(), configured(*SERVERS)
    key = {"codex": "mcp_servers", "qwen-code": "mcpServers"}.get(name, "mcp")
    servers = given.pop(key)
    assert isinstance(servers, dict) and given == plain
    words = servers["words"]
    command = words["command"] if key == "mcp" else [words["command"], *words["args"]]
    assert command == [SERVERS[0].command, *SERVERS[0].args]
    assert list(servers) == ["words", "2-plain"]


def test_a_file_without_an_object_is_refused() -> None:
    with pytest.raises(ValueError, match="an object is needed"):
        with_servers(b"[1]", "mcpServers", SERVERS)
    assert with_servers(b"[1]", "mcpServers", ()) == b"[1]"
