"""A topology from its file, whole or not at all: every problem in one line, each with its key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.languages import SPECIFIER, VARIABLE
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.checks import problems
from orchestrator.deploy.cluster.inline import login, secret_options
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.runtime.shipped import shipped
from orchestrator.settings.config import Config, RunSection
from sandboxes.text_files import read_toml

EXAMPLES = shipped("_cluster", "ops/cluster") / "examples"
OWNED = {
    "run.name": "name",
    "services.database_url": "secrets.database_url",
    "services.nats_url": "nats",
    "policy.model": "shared.model",
    "policy.directory": "shared.path",
    "gateway.host": "gateways",
    "gateway.port": "gateways.port",
    "gateway.sandbox_port": "gateways.sandbox_port",
    "gateway.secret_file": "secrets.gateway_admin",
    "gateway.urls": "gateways",
    "servers.key_file": "secrets.server_key",
    "servers.urls": "servers",
    "servers.embedded": "servers.replicas",
    "servers.command": "servers.engine",
    "rollout.slots": "runners.slots",
    "rollout.verify_slots": "verifiers.slots",
    "sandbox.provider": "runners.provider",
    "trainer.ranks": "trainer.ranks",
    "metrics.host": "the metrics_port of each role",
    "metrics.ports": "the metrics_port of each role",
    "web.host": "web",
    "web.port": "web.port",
    "web.exposed": "web",
}
"""Keys of penstock.toml that follow from the topology, and the topology keys that decide them."""


def _key(location: tuple[int | str, ...]) -> str:
    """runners[0].slots"""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _explain(error: ValidationError, below: str = "") -> list[str]:
    messages = []
    found = error.errors()
    for item in found:
        inside = [deeper["loc"] for deeper in found if len(deeper["loc"]) > len(item["loc"])]
        if item["type"] == "too_short" and any(loc[: len(item["loc"])] == item["loc"] for loc in inside):
            continue  # only its invalid item is missing
        key = ".".join(part for part in (below, _key(item["loc"])) if part)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "is not a known key"
        messages.append(f"{key}: {message}" if key else message)
    return messages


def _inline(node: Any, key: str = "") -> list[str]:
    """Keys whose text contains a login."""
    if isinstance(node, dict):
        return [
            found
            for name, value in node.items()
            for found in _inline(value, f"{key}.{name}" if key else name)
        ]
    if isinstance(node, list):
        return [found for number, value in enumerate(node) for found in _inline(value, f"{key}[{number}]")]
    return (
        [key] if isinstance(node, str) and (login(node) or (key == "nats.external" and "@" in node)) else []
    )


def _marked(node: Any, key: str = "") -> Iterator[str]:
    """Keys whose name or text has a character by which the renderers mark variables of their own."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _marked(name, below := f"{key}.{name}" if key else str(name))
            yield from _marked(value, below)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _marked(value, f"{key}[{number}]")
    elif isinstance(node, str) and (VARIABLE in node or SPECIFIER in node):
        yield key


def _controls(node: Any, key: str = "") -> Iterator[str]:
    """Keys whose text has a line break or another control character. Texts for other programs, [config] and options, may have them."""
    if isinstance(node, dict):
        for name, value in node.items():
            if not (key == "" and name == "config") and name != "options":
                yield from _controls(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _controls(value, f"{key}[{number}]")
    elif isinstance(node, str) and any(ord(letter) < 32 or ord(letter) == 127 for letter in node):
        yield key


def _keyed(raw: dict[str, Any]) -> Iterator[str]:
    """Options of rollout servers that take a secret."""
    pools = raw.get("servers")
    for number, pool in enumerate(pools if isinstance(pools, list) else []):
        options = pool.get("options") if isinstance(pool, dict) else None
        for option in secret_options(options if isinstance(options, list) else []):
            yield (
                f"servers[{number}].options: {option} gives a secret inline, on a command line that every user of the machine can read: "
                "take it out and let the network decide which clients reach a rollout server"
            )


def read(raw: dict[str, Any], source: str = "topology") -> Topology:
    """The content of a TOML file as a consistent topology. Raises ConfigurationError: one line, every problem with its key."""
    found_problems = [
        f"{key} holds a login, given inline: keep the whole URL as a secret, and name that in [secrets]"
        for key in _inline(raw)
    ]
    found_problems += [
        f"{quoted(key)} has the character U+{ord(VARIABLE):04X} or U+{ord(SPECIFIER):04X} of the private use area: take it out"
        for key in dict.fromkeys(_marked(raw))
    ]
    found_problems += [
        f"{key} has a line break or another control character: take it out" for key in _controls(raw)
    ]
    found_problems += _keyed(raw)
    config = raw.get("config")
    sections: dict[str, Any] = config if isinstance(config, dict) else {}
    found_problems += [
        f"config.{name}: must be a table, got {quoted(section)}"
        for name, section in sections.items()
        if name in Config.model_fields and not isinstance(section, dict)
    ]
    for owned, by in OWNED.items():
        section, _, name = owned.partition(".")
        if isinstance(found := sections.get(section), dict) and name in found:
            found_problems.append(f"config.{owned} follows from the topology ({by}): take it out of [config]")
    topology: Topology | None = None
    try:
        topology = Topology.model_validate(raw)
    except ValidationError as error:
        found_problems += _explain(error)
    if topology is not None and not found_problems:
        try:
            RunSection(name=topology.name)
            topology.penstock  # noqa: B018 (validated)
        except ValidationError as error:
            found_problems += _explain(error, "config")
        else:
            found_problems += problems(topology)
    if found_problems or topology is None:
        raise ConfigurationError(f"{source}: " + "; ".join(found_problems))
    return topology


def load(path: Path) -> Topology:
    """Read `path`. Raises ConfigurationError, one line: every problem with its key."""
    try:
        raw = read_toml(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{path} does not exist; begin with one of {EXAMPLES}") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return read(raw, str(path))
