"""The `docker-compose.yaml` of an older terminal task: one service, which only says how its image is built and run.

A further service, and each key that would change the agent's world, is refused by its name.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.compose.document import build_of, interpolated, mapping, pairs_of, text_of
from orchestrator.tasks.compose.keys import SIDE, is_this_machines
from orchestrator.tasks.keys import Treatment

FILE: Final = "docker-compose.yaml"
_AT: Final = f"{FILE}: "
_TEMPLATE: Final = "${T_BENCH_"
_LOGS: Final = "_LOGS_PATH}"
_IDLE: Final = ("sleep infinity", "sh -c sleep infinity", "bash -c sleep infinity", "tail -f /dev/null")
_NO_EFFECT: Final = (
    "container_name", "expose", "hostname", "init", "labels", "networks", "ports", "pull_policy", "restart", "stdin_open", "stop_grace_period",
    "stop_signal", "tty",
)  # fmt: skip
"""Keys of a service that change nothing for a task here: its sandbox stays open by itself, and reaches no other service."""
_ROOT: Final = ("root", "0", "root:root", "0:0")
_FILE_KEYS: Final = ("services", "version", "name", "networks")
_STARTED: Final = "the agent begins in a sandbox where nothing runs: start it in [environment].healthcheck of the imported task, or remove it"
_REMEDIES: Final = {
    "command": _STARTED,
    "cpus": "write it as deploy.resources.limits.cpus, or remove it",
    "depends_on": "it has no other service: remove it",
    "entrypoint": _STARTED,
    "healthcheck": "remove it, or write it into [environment].healthcheck of the imported task",
    "mem_limit": "write it as deploy.resources.limits.memory, or remove it",
    "network_mode": "a sandbox has no network, unless [environment].network_mode of the imported task names one: remove it",
    "user": "write it as USER into the Dockerfile, or as [agent].user into the imported task",
    "volumes": "nothing of the task's folder or the machine is bound into a sandbox: COPY what the agent may see, and remove it",
}
_DEFAULT_REMEDY: Final = "write it into the Dockerfile, or remove it"
_HIDDEN: Final = ("tests", "run-tests.sh", "solution.sh", "solution.yaml", "task.yaml")
_MEMORY: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([bkmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`context`: the build's folder, relative to the task; `dockerfile` in it; `image` None: the Dockerfile makes it. `cpus`, `memory_mb`: its
    limits; None: those of a sandbox. `is_root`: it names root, in whose place the sandbox's own user works, whatever an image by name says."""

    context: str = ""
    dockerfile: str = "Dockerfile"
    image: str | None = None
    workdir: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    is_root: bool = False


def read_compose(text: str) -> Service:
    """The only service of a compose file."""
    found = mapping(text, FILE, plain=True)
    for key in found:
        if key not in _FILE_KEYS and not key.startswith("x-"):
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
    image, workdir, context, dockerfile, is_root = None, None, "", "Dockerfile", False
    env: dict[str, str] = {}
    limits: dict[str, Any] = {}
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
            case "volumes":
                _check_volumes(value)
            case "deploy":
                limits = _limits(value)
            case "platform" if is_this_machines(value):
                pass
            case "network_mode" if value == "bridge":
                pass  # the network that it has without the key
            case "user" if str(value) in _ROOT:
                is_root = True
            case _ if key in _NO_EFFECT:
                pass
            case _:
                raise ValueError(
                    f"{FILE}: {quoted(key)} of the service is not honoured, got {quoted(value)}: {_remedy(key)}"
                )
    if "build" in service:
        image = None  # only the name of what is built
    return Service(
        context=context,
        dockerfile=dockerfile,
        image=image,
        workdir=workdir,
        env=env,
        is_root=is_root,
        **limits,
    )


def _remedy(key: str) -> str:
    """The remedy for a key; the rules for services of the newer form hold here."""
    newer = SIDE.get(key)
    refused = newer.says if newer is not None and newer.treatment is Treatment.REFUSED else _DEFAULT_REMEDY
    return _REMEDIES.get(key, refused)


def _check_volumes(value: Any) -> None:
    """ValueError for a volume that is not one of the harness's own logs; by name for one that shows the agent what it must not see."""
    for each in value if isinstance(value, list) else [value]:
        if _is_logs(each):
            continue
        source = str(each.get("source") if isinstance(each, dict) else each).partition(":")[0]
        whole = source.rstrip("/") == "."
        first = "tests and solution" if whole else source.removeprefix("./").partition("/")[0]
        remedy = (
            f"it gives the agent {first}, which must stay hidden: remove it"
            if whole or first in _HIDDEN
            else _REMEDIES["volumes"]
        )
        raise ValueError(f"{FILE}: 'volumes' of the service has {quoted(each)}: {remedy}")


def _limits(value: Any) -> dict[str, Any]:
    """`cpus` and `memory_mb` of the key `deploy`. What it reserves is less than a sandbox may use."""
    resources = value.get("resources") if isinstance(value, dict) else None
    tables = resources if isinstance(resources, dict) else {}
    plain = {"cpus", "memory"}
    limits, reserved = tables.get("limits") or {}, tables.get("reservations") or {}
    parts = (limits, reserved)
    if (
        not isinstance(value, dict)
        or not set(value) <= {"resources"}
        or not set(tables) <= {"limits", "reservations"}
        or not all(isinstance(each, dict) and set(each) <= plain for each in parts)
    ):
        raise ValueError(
            f"{FILE}: 'deploy' of the service is not honoured, got {quoted(value)}: write resources.limits with cpus and memory alone"
        )
    found: dict[str, Any] = {}
    if (cpus := limits.get("cpus")) is not None:
        found["cpus"] = _cores(cpus)
    if (memory := limits.get("memory")) is not None:
        found["memory_mb"] = _megabytes(memory)
    return found


def _cores(value: Any) -> float:
    try:
        cores = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        cores = 0.0
    if not math.isfinite(cores) or cores <= 0:
        raise ValueError(
            f"{FILE}: deploy.resources.limits.cpus must be a number above 0, got {quoted(value)}"
        )
    return int(cores) if cores.is_integer() else cores


def _megabytes(value: Any) -> int:
    form = _MEMORY.fullmatch(str(value).strip()) if isinstance(value, str | int) else None
    size = 0 if form is None else int(float(form[1]) * _UNITS[form[2].lower()] / (1 << 20))
    if size <= 0 or isinstance(value, bool):
        raise ValueError(
            f"{FILE}: deploy.resources.limits.memory must be a size such as 512M, got {quoted(value)}"
        )
    return size


def _variables(value: Any) -> dict[str, str]:
    found = {}
    for name, text in pairs_of(value, _AT):
        written = "" if text is None else str(text).lower() if isinstance(text, bool) else str(text)
        if _TEMPLATE in written:
            continue  # what the harness fills in: /tests, logs
        found[name] = str(interpolated(written, f"{FILE}: environment.{name} = ", {}))
    return found


def _is_logs(value: Any) -> bool:
    return (
        isinstance(value, str) and value.startswith(_TEMPLATE) and value.removesuffix(":rw").endswith(_LOGS)
    )


def _words(value: Any) -> str:
    return " ".join(map(str, value)).strip() if isinstance(value, list) else str(value).strip()
