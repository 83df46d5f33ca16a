"""Every key of `environment/docker-compose.yaml`: its treatment. A key that is in none of these tables is refused, too.

`ops/guides/task_keys.py` writes the guide's table from these.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.keys import SLIP, Treatment
from sandboxes.images.architecture import is_here


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeKey:
    """`says`: details; for a refused key why, and what to do. `idle`: values of a refused key that request nothing, or a question
    about a value."""

    treatment: Treatment
    says: str = ""
    idle: tuple[Any, ...] | Callable[[Any], bool] = ()

    def is_idle(self, value: Any) -> bool:
        """Whether a value of a refused key requests nothing."""
        return self.idle(value) if callable(self.idle) else value in self.idle


def _honoured(says: str = "") -> ComposeKey:
    return ComposeKey(treatment=Treatment.HONOURED, says=says)


def _no_effect(says: str = "") -> ComposeKey:
    return ComposeKey(treatment=Treatment.NO_EFFECT, says=says)


def _refused(says: str, *idle: Any) -> ComposeKey:
    return ComposeKey(treatment=Treatment.REFUSED, says=says, idle=idle)


def is_this_machines(platform: Any) -> bool:
    """Whether a value of `platform` names this machine's processors."""
    return isinstance(platform, str) and is_here(platform)


_ALONE: Final = "a service has only its own files and the network of its task: remove it"
_LIMITS: Final = "each service has the limits of a sandbox: remove it"
_BAKED: Final = "write it into the service's image, or into environment"
_RIGHTS: Final = "services have few rights, and keep them: remove it"

FILE: Final[Mapping[str, ComposeKey]] = {
    "services": _honoured("`main` is the agent's sandbox; each other one is a side service, at most 16"),
    "networks": _honoured(
        "one at most, for all services; without settings but `driver: bridge` and `internal`"
    ),
    "volumes": _honoured("names alone, without settings"),
    "version": _no_effect(),
    "name": _no_effect(),
    "include": _refused("write the services into this file"),
    "secrets": _refused(_BAKED),
    "configs": _refused(_BAKED),
}

SIDE: Final[Mapping[str, ComposeKey]] = {
    "image": _honoured("the image, unless `build` makes one; the engine must have it, or be able to pull it"),
    "build": _honoured("`context`, a folder of environment/, and `dockerfile` in it"),
    "entrypoint": _honoured("in place of the image's ENTRYPOINT and CMD"),
    "command": _honoured("in place of the image's CMD"),
    "environment": _honoured("above the image's ENV"),
    "working_dir": _honoured("in place of the image's WORKDIR"),
    "user": _honoured("in place of the image's USER"),
    "depends_on": _honoured("with the conditions `service_started` and `service_healthy`"),
    "healthcheck": _honoured("must succeed before the agent starts; docker's keys and defaults"),
    "hostname": _honoured("one more name"),
    "container_name": _honoured("one more name"),
    "networks": _honoured("with `aliases`: more names"),
    "volumes": _honoured("named ones of one service alone; they end with it"),
    "expose": _no_effect("all ports of a service can be reached"),
    "ports": _no_effect(
        "they are for users of the machine, where no port is opened; agent and tests reach every port by the service's name"
    ),
    "labels": _no_effect(),
    "init": _no_effect("ended processes are always collected"),
    "stop_signal": _no_effect("services are killed"),
    "stop_grace_period": _no_effect("services are killed"),
    "restart": _refused("a service that ends stays ended: remove it", "no"),
    "privileged": _refused(_RIGHTS, False),
    "cap_add": _refused(_RIGHTS, []),
    "cap_drop": _refused(_RIGHTS, []),
    "security_opt": _refused(_RIGHTS, []),
    "network_mode": _refused(_ALONE),
    "devices": _refused(_ALONE, []),
    "extra_hosts": _refused(_ALONE, []),
    "dns": _refused(_ALONE),
    "pid": _refused(_ALONE),
    "ipc": _refused(_ALONE),
    "links": _refused("services reach each other by their names: remove it", []),
    "env_file": _refused(_BAKED, []),
    "secrets": _refused(_BAKED, []),
    "configs": _refused(_BAKED, []),
    "tmpfs": _refused("all directories of a service can be written: remove it", []),
    "deploy": _refused(_LIMITS),
    "mem_limit": _refused(_LIMITS),
    "cpus": _refused(_LIMITS),
    "ulimits": _refused(_LIMITS),
    "shm_size": _refused(_LIMITS),
    "tty": _refused("no terminal is attached: remove it", False),
    "stdin_open": _refused("no input is attached: remove it", False),
    "extends": _refused("write the keys into the service"),
    "profiles": _refused("every service is started: remove it", []),
    "platform": ComposeKey(
        treatment=Treatment.REFUSED,
        says="services run on this machine's processors: name those, or remove it",
        idle=is_this_machines,
    ),
}

_MAIN: Final = "services reach the sandbox as main: remove it"
_IN_TOML: Final = "write it into task.toml: {}"
MAIN: Final[Mapping[str, ComposeKey]] = {
    "build": _honoured("`environment/Dockerfile`, where it is always"),
    "network_mode": _honoured("Harbor's own (`${NETWORK_MODE}`), which the network of task.toml decides"),
    "image": _honoured("`${MAIN_IMAGE_NAME}` alone; another one belongs into `[environment].docker_image`"),
    "environment": _honoured("for agent and tests, above the Dockerfile's ENV and below `[environment].env`"),
    "depends_on": _honoured("the agent waits for every service"),
    "networks": _honoured("the one that all share, without aliases"),
    "command": _honoured("one that only waits, such as `sleep infinity`"),
    "volumes": _honoured("Harbor's own for logs (`${HOST_…_LOGS_PATH}`)"),
    "deploy": _honoured("Harbor's own limits (`${CPUS}`, `${MEMORY}`)"),
    **dict.fromkeys(
        ("expose", "init", "labels", "ports", "restart", "stdin_open", "tty"),
        _no_effect(),
    ),
    "hostname": _refused(_MAIN),
    "container_name": _refused(_MAIN),
    "working_dir": _refused(_IN_TOML.format("[environment].workdir")),
    "healthcheck": _refused(_IN_TOML.format("[environment].healthcheck")),
    "user": _refused(_IN_TOML.format("[agent].user and [verifier].user")),
    "entrypoint": _refused("the agent's programs are started by the platform: remove it"),
    **{
        name: key
        for name, key in SIDE.items()
        if key.treatment is Treatment.REFUSED
        and name not in ("restart", "deploy", "tty", "stdin_open", "network_mode")
    },
}


def wrong(table: Mapping[str, Any], known: Mapping[str, ComposeKey], at: str) -> Iterator[str]:
    """A sentence for each key that would not be honoured."""
    for name, value in table.items():
        key = known.get(name)
        if name.startswith("x-"):
            continue
        if key is None:
            close = get_close_matches(name, known, n=1, cutoff=SLIP)
            yield f"{at}{quoted(name)} is not honoured: {f'write {close[0]}' if close else 'remove it'}"
        elif key.treatment is Treatment.REFUSED and not key.is_idle(value):
            yield f"{at}{name} = {quoted(value)} is not honoured: {key.says}"
