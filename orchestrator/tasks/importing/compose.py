"""The `docker-compose.yaml` of an older terminal task: one service, which only says how its image is built and run.

A further service, and each key that would change the agent's world, is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.compose.document import build_of, mapping, pairs_of, text_of

FILE: Final = "docker-compose.yaml"
_AT: Final = f"{FILE}: "
_TEMPLATE: Final = "${T_BENCH_"
_LOGS: Final = "_LOGS_PATH}"
_IDLE: Final = ("sleep infinity", "sh -c sleep infinity", "bash -c sleep infinity", "tail -f /dev/null")
_NO_EFFECT: Final = ("container_name", "hostname", "ports", "stdin_open", "tty", "init", "restart")
"""Keys of a service that change nothing for a task here: its sandbox stays open by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`context`: the build's folder, relative to the task; `dockerfile` in it; `image` None: the Dockerfile makes it."""

    context: str = ""
    dockerfile: str = "Dockerfile"
    image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def read_compose(text: str) -> Service:
    """The only service of a compose file."""
    found = mapping(text, FILE, plain=True)
    for key in found:
        if key not in ("services", "version", "name") and not key.startswith("x-"):
            raise ValueError(f"{FILE}: {quoted(key)} is not honoured: a task has one sandbox")
    services = found.get("services")
    if not isinstance(services, dict) or not services:
        raise ValueError(f"{FILE} has no services: it must have one, client")
    if len(services) > 1:
        others = ", ".join(sorted(str(name) for name in services if name != "client"))
        raise ValueError(
            f"{FILE} has the further services {others[:200]}: the older form is imported without them, so put what they do into its image"
        )
    [(name, service)] = services.items()
    if not isinstance(service, dict):
        raise ValueError(f"{FILE}: the service {quoted(name)} must be a mapping, got {quoted(service)}")
    return _service(service)


def _service(service: Mapping[str, Any]) -> Service:
    image, workdir, context, dockerfile = None, None, "", "Dockerfile"
    env: dict[str, str] = {}
    for key, value in service.items():
        match key:
            case "build":
                context, dockerfile = build_of(value, _AT)
            case "image":
                image = None if _TEMPLATE in str(value) else text_of(key, value, _AT)
            case "working_dir":
                workdir = text_of(key, value, _AT)
            case "environment":
                env = _variables(value)
            case "command" if _words(value) in _IDLE:
                pass
            case "volumes" if isinstance(value, list) and all(_is_logs(each) for each in value):
                pass
            case _ if key in _NO_EFFECT:
                pass
            case _:
                raise ValueError(
                    f"{FILE}: {quoted(key)} of the service is not honoured, got {quoted(value)}: write it into the Dockerfile, or remove it"
                )
    if "build" in service:
        image = None  # only the name of what is built
    return Service(context=context, dockerfile=dockerfile, image=image, workdir=workdir, env=env)


def _variables(value: Any) -> dict[str, str]:
    found = {}
    for name, text in pairs_of(value, _AT):
        written = "" if text is None else str(text).lower() if isinstance(text, bool) else str(text)
        if _TEMPLATE in written:
            continue  # what the harness fills in: /tests, logs
        if "${" in written:
            raise ValueError(
                f"{FILE}: environment.{name} takes a variable of the host, got {quoted(written)}"
            )
        found[name] = written
    return found


def _is_logs(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(_TEMPLATE) and value.endswith(_LOGS)


def _words(value: Any) -> str:
    return " ".join(map(str, value)).strip() if isinstance(value, list) else str(value).strip()
