"""Additions of a task to the agent's program besides files: MCP servers and skills. Only scaffolds that declare support receive them."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from scaffolds.base import Manifest
from scaffolds.mcp import McpServer

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.environment import LOGS, Environment
from orchestrator.tasks.key_values import WORD_BYTES
from sandboxes.artifacts import SYSTEM
from sandboxes.base import WRITABLE
from sandboxes.paths import parents

STDIO: Final = "stdio"
_NAME: Final = "1 to 64 letters, digits, _ and -"


def mcp_servers(table: Mapping[str, Any]) -> tuple[McpServer, ...]:
    """The servers of `[environment].mcp_servers`, valid since the task was accepted."""
    found = table.get("mcp_servers")
    servers = found if isinstance(found, list) else []
    return tuple(
        McpServer(server["name"], server["command"], tuple(server.get("args", ())))
        for server in servers
        if isinstance(server, dict)
        and isinstance(server.get("name"), str)
        and isinstance(server.get("command"), str)
    )


def skills_dir(table: Mapping[str, Any]) -> str:
    """`[environment].skills_dir`, empty without one."""
    found = table.get("skills_dir")
    return found if isinstance(found, str) else ""


def missing_skills(table: Mapping[str, Any], environment: Environment) -> Iterator[str]:
    """Why `[environment].skills_dir` cannot be copied, as a sentence. What an image holds is known when it is built, and places of the sandbox's
    own system when it runs."""
    given = skills_dir(table)
    if not given or environment.build is not None:
        return
    path = posixpath.normpath(posixpath.join(environment.work_dir, given))
    path = f"/{path.lstrip('/')}"
    above = {path, *parents(path)}
    if above.intersection(SYSTEM) or above.intersection(environment.links):
        return
    there = {*WRITABLE, *LOGS, *environment.directories, *environment.modes}
    for placed in (*environment.files, *environment.links, *environment.directories, *environment.modes):
        there.update(parents(placed))
    if path not in there:
        folder = "environment/" if "docker_image" in table else "environment/files/"
        yield (
            f"task.toml: [environment].skills_dir = {quoted(given)}: no image is built, and no directory of the task lies there: put the skills "
            f"below {folder}, and name their place below /app"
        )


def refusals(table: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
    """Why a scaffold cannot run a task, as sentences. A scaffold without completions needs neither servers nor skills."""
    if not manifest.trains:
        return
    if mcp_servers(table) and not manifest.mcp:
        yield f"[environment].mcp_servers is not honoured by the scaffold {manifest.name}, whose program is given none: choose another scaffold"
    if skills_dir(table) and not manifest.skills:
        yield f"[environment].skills_dir is not honoured by the scaffold {manifest.name}, whose program is given no skills: choose another scaffold"


def replaced(variables: Iterable[str], manifest: Manifest) -> Iterator[str]:
    """Variables of a task that a scaffold's program does not get, as sentences."""
    for name in sorted(set(variables).intersection(manifest.env)):
        yield f"[environment].env: {name} is not honoured by the scaffold {manifest.name}, which sets it itself: remove it, or take another scaffold"


def is_name(value: Any) -> str | None:
    """The check of a server's name."""
    plain = isinstance(value, str) and value.isascii() and value.replace("-", "_").replace("_", "a").isalnum()
    return None if plain and len(value) <= 64 else _NAME


def arguments(value: Any) -> str | None:
    """The check of a server's arguments."""
    known = isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)
    if not known:
        return "a list of texts"
    fits = sum(len(each.encode(errors="replace")) for each in value) <= WORD_BYTES
    return None if fits else f"a list of texts of at most {WORD_BYTES // 1024} KB in all"


def servers_must(value: Any) -> str | None:
    """The check of the servers together."""
    names = [each["name"] for each in value]
    return None if len(set(names)) == len(names) else "servers of different names"
