"""`environment/docker-compose.yaml` → the variables of `main`, and the side services."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks import key_values as values
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.collected import MAIN
from orchestrator.tasks.compose import keys
from orchestrator.tasks.compose.document import (
    build_of,
    given,
    interpolated,
    mapping,
    pairs_of,
    text_of,
    words_of,
)
from orchestrator.tasks.compose.health import health_of
from orchestrator.tasks.compose.together import (
    NAME,
    PLACE,
    TAKEN,
    after_of,
    check_together,
    names_of,
    networks_of,
    volumes_of,
)
from orchestrator.tasks.environment import DOCKERFILE, IGNORES, build_context
from orchestrator.tasks.reserved import PREFIX
from orchestrator.tasks.sizes import check_variables
from sandboxes import text_files
from sandboxes.base import File, SideService

COMPOSE: Final = "docker-compose.yaml"
SHOWN: Final = f"environment/{COMPOSE}"
MAX_SERVICES: Final = 16
MAX_BYTES: Final = 100 * 1024
"""Of the file. Each of its texts may become one word of a command line."""
IDLE: Final = ("sleep infinity", "sh -c sleep infinity", "bash -c sleep infinity", "tail -f /dev/null")
_USER: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,63}(:[A-Za-z0-9_][\w.-]{0,63})?", re.ASCII)
_HARBOR: Final = {"CONTEXT_DIR": ".", "TEST_DIR": "/tests"}
"""Variables that Harbor sets, with their values here."""
_IMAGE: Final = "${MAIN_IMAGE_NAME}"
_LOGS: Final = re.compile(r"\$\{HOST_\w*LOGS_PATH\}:\$\{ENV_\w*LOGS_PATH\}")
_NETWORK: Final = "${NETWORK_MODE}"
_OWN: Final = re.compile(
    r"\$\{(MAIN_IMAGE_NAME|CPUS|MEMORY|NETWORK_MODE|HOST_\w*LOGS_PATH|ENV_\w*LOGS_PATH):?-[^${}]*\}", re.ASCII
)
"""Variables that Harbor always sets, written with a default that never counts."""
_WITH_DEFAULTS: Final = ("image", "network_mode", "deploy")
"""Keys of `main` whose value is compared with Harbor's own variables. A variable of its environment keeps its default: nothing sets it here."""
_LIMITS: Final = {"cpus": "${CPUS}", "memory": "${MEMORY}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """`env`: variables of the agent's sandbox. `services`: each after those that it waits for. `contexts`: folders below environment/ whose files
    make images of services, each ending in a slash; "": all of it."""

    env: Mapping[str, str] = field(default_factory=dict)
    services: tuple[SideService, ...] = ()
    contexts: tuple[str, ...] = ()


NOTHING: Final = Composed()


def read_services(context: Bundle) -> Composed:
    """The compose file of a task's environment, if there is one. `context`: the bundle of environment/."""
    file = context.files.get(COMPOSE)
    if file is None:
        return NOTHING
    if file.size > MAX_BYTES:
        raise ValueError(f"{SHOWN} has {file.size:,} bytes, and may have {MAX_BYTES:,}")
    found = mapping(text_files.text_of(file.data, SHOWN), SHOWN, plain=True)
    at = f"{SHOWN}: "
    for problem in (*keys.wrong(found, keys.FILE, at), *_flaws(found, at)):
        raise ValueError(problem)
    tables: Mapping[str, Any] = given(found, "services", {})
    for name, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
            raise ValueError(
                f"{at}the service {quoted(name)} must be a mapping with keys, got {quoted(table)}"
            )
    side = {name: table for name, table in tables.items() if name != MAIN}
    if len(side) > MAX_SERVICES:
        raise ValueError(f"{at}it has {len(side)} services next to {MAIN}, and may have {MAX_SERVICES}")
    main = tables.get(MAIN, {})
    env = _main(main, context, side)
    services = [_service(name, table, context) for name, table in side.items()]
    contexts = tuple(_folder(table["build"], name) for name, table in side.items() if "build" in table)
    return Composed(env=env, services=check_together(found, side, services, at), contexts=contexts)


def _flaws(found: Mapping[str, Any], at: str) -> Iterator[str]:
    if not isinstance(services := found.get("services"), dict) or not services:
        yield f"{at}services must be a mapping of services, got {quoted(services)}"
        return
    for name in services:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield f"{at}{quoted(name)} cannot be the name of a service: use letters, digits and _.-, at most 63"
    for key in ("volumes", "networks"):
        tables = given(found, key, {})
        if not isinstance(tables, dict):
            yield f"{at}{key} must be a mapping of names, got {quoted(tables)}"
            continue
        for name, table in tables.items():
            allowed = {"driver": ("bridge",), "internal": (True, False)} if key == "networks" else {}
            for inner, value in (table or {}).items() if isinstance(table, dict | None) else [("", table)]:
                if value not in allowed.get(inner, ()):
                    yield f"{at}{key}.{name}{inner and '.'}{inner} = {quoted(value)} is not honoured: remove it"


def _at(name: str) -> str:
    return f"{SHOWN}: service {name}: "


def _main(table: Mapping[str, Any], context: Bundle, side: Mapping[str, Any]) -> Mapping[str, str]:
    """The variables of the agent's sandbox. Nothing else of `main` may differ from what it is anyway."""
    at = _at(MAIN)
    for problem in keys.wrong(table, keys.MAIN, at):
        raise ValueError(problem)
    own = {key: _without_defaults(table[key]) for key in _WITH_DEFAULTS if key in table}
    if own.get("network_mode", _NETWORK) != _NETWORK:
        raise ValueError(
            f"{at}network_mode = {quoted(table['network_mode'])} is not honoured: write network_mode into [environment] of task.toml"
        )
    if own.get("image", _IMAGE) != _IMAGE:
        raise ValueError(
            f"{at}image = {quoted(table['image'])} is not honoured: write it into task.toml: [environment].docker_image"
        )
    if "build" in table:
        built = build_of(interpolated(table["build"], at, _HARBOR), at)
        if built != ("", DOCKERFILE):
            raise ValueError(
                f"{at}build = {quoted(table['build'])} is not honoured: the agent's image is made by environment/{DOCKERFILE}"
            )
    if any(networks_of(given(table, "networks", {}), at).values()):
        raise ValueError(f"{at}networks.aliases is not honoured: services reach the sandbox as {MAIN}")
    if "command" in table and " ".join(words_of("command", table["command"], at)) not in IDLE:
        raise ValueError(
            f"{at}command = {quoted(table['command'])} is not honoured: start it in [environment].healthcheck, or remove it"
        )
    volumes = given(table, "volumes", ())
    for volume in volumes if isinstance(volumes, list | tuple) else (volumes,):
        if not isinstance(volume, str) or not _LOGS.fullmatch(_without_defaults(volume)):
            raise ValueError(f"{at}volumes has {quoted(volume)}, which is not honoured: remove it")
    limits = (own.get("deploy") or {"resources": {"limits": {}}}) == {
        "resources": {"limits": {key: value for key, value in _LIMITS.items() if _limited(table, key)}}
    }
    if not limits:
        raise ValueError(
            f"{at}deploy = {quoted(table['deploy'])} is not honoured: write cpus and memory_mb into [environment] of task.toml"
        )
    for name in after_of(given(table, "depends_on", {}), at):
        if name not in side:
            raise ValueError(
                f"{at}depends_on names {quoted(name)}, which does not exist: add it, or remove it"
            )
    return _variables(interpolated(given(table, "environment", {}), at, _HARBOR), at)


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_defaults(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    return _OWN.sub(r"${\1}", value) if isinstance(value, str) else value


def _limited(table: Mapping[str, Any], key: str) -> bool:
    try:
        return key in table["deploy"]["resources"]["limits"]
    except (KeyError, TypeError):
        return False


def _service(name: str, table: Mapping[str, Any], context: Bundle) -> SideService:
    at = _at(name)
    if name.lower() in TAKEN:
        raise ValueError(f"{at}the name is taken by the agent's sandbox: choose another one")
    for problem in keys.wrong(table, keys.SIDE, at):
        raise ValueError(problem)
    table = interpolated(table, at, {})
    if "image" not in table and "build" not in table:
        raise ValueError(f"{at}it has neither image nor build: name one")
    shown = ""
    if "image" in table:
        shown = text_of("image", table["image"], at)
        if (flaw := values.image(shown)) is not None:
            raise ValueError(f"{at}image must be {flaw}, got {quoted(shown)}")
    build: Mapping[str, Any] = {DOCKERFILE: File(f"FROM {shown}\n".encode())}
    if "build" in table:
        shown, build = _built(table["build"], context, at)
    words = {
        key: _words(key, table[key], at) for key in ("entrypoint", "command") if table.get(key) is not None
    }
    work_dir, user = table.get("working_dir"), table.get("user")
    if work_dir is not None and (
        not isinstance(work_dir, str)
        or not PLACE.fullmatch(work_dir)
        or posixpath.normpath(work_dir) != work_dir
    ):
        raise ValueError(f"{at}working_dir must be an absolute path, got {quoted(work_dir)}")
    if user is not None and (isinstance(user, bool) or not _USER.fullmatch(str(user))):
        raise ValueError(f"{at}user must be a user, or user:group, got {quoted(user)}")
    health = health_of(table["healthcheck"], at) if table.get("healthcheck") is not None else None
    return SideService(
        name=name,
        build=build,
        shown=shown,
        entrypoint=words.get("entrypoint"),
        command=words.get("command"),
        env=_variables(given(table, "environment", {}), at),
        work_dir=work_dir,
        user=None if user is None else str(user),
        names=tuple(names_of(table, at)),
        volumes=tuple(path for _, path in volumes_of(given(table, "volumes", ()), at)),
        health=health,
        after=after_of(given(table, "depends_on", {}), at),
    )


def _words(key: str, value: Any, at: str) -> tuple[str, ...]:
    words = words_of(key, value, at)
    if not words or not words[0]:
        raise ValueError(f"{at}{key} has no words: write a program, or remove it")
    return words


def _built(value: Any, context: Bundle, at: str) -> tuple[str, Mapping[str, Any]]:
    folder, dockerfile = build_of(value, at)
    bundle = context.below(f"{folder}/") if folder else context
    if dockerfile not in bundle.files:
        path = posixpath.join("environment", folder, dockerfile or DOCKERFILE)
        raise ValueError(f"{at}build needs {path}, which does not exist in the task: add it")
    folder = posixpath.join("environment", folder)
    found = build_context(bundle, dockerfile, folder)
    if dockerfile == DOCKERFILE:
        return posixpath.join(folder, dockerfile), found
    own = found.get(f"{dockerfile}.dockerignore")  # only that of its own Dockerfile counts
    others = {path: entry for path, entry in found.items() if path != IGNORES[1]}
    named = {DOCKERFILE: found[dockerfile], **({} if own is None else {IGNORES[1]: own})}
    return posixpath.join(folder, dockerfile), {**others, **named}


def _folder(build: Any, name: str) -> str:
    folder, _ = build_of(interpolated(build, "", {}), _at(name))
    return f"{folder}/" if folder else ""


def _variables(value: Any, at: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in pairs_of(value, at):
        if not values.VARIABLE.fullmatch(name):
            raise ValueError(f"{at}environment: {quoted(name)} is not a valid name of a variable")
        if name.startswith(PREFIX):
            raise ValueError(f"{at}environment.{name}: names that begin with {PREFIX} are reserved")
        if text is None:
            raise ValueError(f"{at}environment.{name} takes a variable of the machine: write its value")
        if not isinstance(text, str | int) or "\0" in str(text):
            raise ValueError(f"{at}environment.{name} must be text, got {quoted(text)}")
        found[name] = str(text).lower() if isinstance(text, bool) else str(text)
    check_variables(found, f"{at}environment")
    return found
