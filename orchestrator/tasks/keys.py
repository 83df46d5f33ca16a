"""Every key of a `task.toml`: its treatment and its valid values. It covers Harbor's keys (schema 1.4 and older spellings) and our own.

A key is honoured, or has no effect on agent and tests, or the task is refused and the key named: no key is read and
ignored. `[metadata]` is the author's own table. A refused key is accepted if its value requests nothing (`gpus = 0`, an empty list).
`ops/guides/task_keys.py` writes the guide's table from this one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Literal

from orchestrator.contracts.quote import quoted
from orchestrator.tasks import extras
from orchestrator.tasks import key_values as values
from orchestrator.tasks.collected import artifacts_must
from orchestrator.tasks.key_values import ValueCheck
from orchestrator.tasks.sizes import read_task_toml

FREE: Final = "metadata"
SLIP: Final = 0.75
"""Minimum similarity (difflib's ratio) of an unknown key to the known key that is suggested."""
TABLES: Final = ("task", "agent", "environment", "verifier", "solution")
_MAX_NAMED: Final = 5
_MAX_FOUND: Final = 100  # a similar key is looked for for each


class Treatment(StrEnum):
    HONOURED = "honoured"
    REFUSED = "refused"
    NO_EFFECT = "no effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """`says`: details; for a refused key, why it is refused, and what to do. `asks_nothing`: accepted values of a refused key, with `any_case` in
    upper and lower case. `must`: check of an
    accepted key's value. `holds`: the value is a table with further keys, or a list of such tables; `needs`: keys without which such a table is
    refused."""

    treatment: Treatment
    says: str = ""
    must: ValueCheck | None = None
    asks_nothing: tuple[Any, ...] = ()
    any_case: bool = False
    holds: Literal["table", "tables"] | None = None
    needs: tuple[str, ...] = ()


def _honoured(must: ValueCheck | None = None, says: str = "") -> Key:
    return Key(treatment=Treatment.HONOURED, must=must, says=says)


def _table(says: str, *needs: str, must: ValueCheck | None = None) -> Key:
    return Key(treatment=Treatment.HONOURED, says=says, holds="table", needs=needs, must=must)


def _tables(says: str, *needs: str, must: ValueCheck | None = None) -> Key:
    return Key(treatment=Treatment.HONOURED, says=says, holds="tables", needs=needs, must=must)


def _no_effect(says: str = "", must: ValueCheck | None = None) -> Key:
    return Key(treatment=Treatment.NO_EFFECT, says=says, must=must)


def _refused(says: str, *asks_nothing: Any) -> Key:
    return Key(treatment=Treatment.REFUSED, says=says, asks_nothing=asks_nothing)


_USER: Final = "a name or a uid, empty for none: task-directory.md, Users"
_SHARED: Final = "the steps of a task share its network: write it in [agent] or [verifier]"
_GRANTED: Final = "refused unless the run grants it (`sandbox.egress`)"


def _network(whose: str) -> dict[str, Key]:
    return {
        "network_mode": _honoured(
            values.network_mode,
            f"{whose} network through a logging proxy: `no-network`, `allowlist` or `public`; {_GRANTED}",
        ),
        "allowed_hosts": _honoured(
            values.hosts,
            "with `allowlist`: names, `*.suffix` or single addresses; refused beyond `sandbox.egress_hosts`",
        ),
    }


def _healthcheck(says: str) -> dict[str, Key]:
    return {
        "healthcheck": _table(says, "command"),
        "healthcheck.command": _honoured(values.command, "run by bash as the agent; exit 0: healthy"),
        "healthcheck.interval_sec": _honoured(values.pause, "seconds after a failure (5)"),
        "healthcheck.timeout_sec": _honoured(values.seconds, "seconds of one run (30)"),
        "healthcheck.start_period_sec": _honoured(values.pause, "seconds in which failures do not count (0)"),
        "healthcheck.start_interval_sec": _honoured(
            values.pause, "seconds after a failure in that period (5)"
        ),
        "healthcheck.retries": _honoured(values.retries, "failures in a row that end the attempt (3)"),
    }


def _below(table: str, keys: Mapping[str, Key]) -> dict[str, Key]:
    return {f"{table}.{name}": key for name, key in keys.items()}


_NO_URL: Final = (
    "agents are given servers that run in their sandbox, and none by URL: give a command that starts it"
)
_ENVIRONMENT: Final[Mapping[str, Key]] = {
    "env": _honoured(values.variables, "for agent and tests, above the Dockerfile's ENV"),
    "workdir": _honoured(
        values.path,
        "as WORKDIR, above that of the Dockerfile, empty for none; `/` is `/app`; not `/logs`, `/tests` or the system; "
        "without an image `/app` or below it",
    ),
    "memory_mb": _honoured(
        values.whole,
        "memory of each of its sandboxes (`sandbox.memory_mb`); refused above `sandbox.max_memory_mb`",
    ),
    "storage_mb": _honoured(
        values.whole, "disk of each of its sandboxes (`sandbox.disk_mb`); refused above `sandbox.max_disk_mb`"
    ),
    "memory": _honoured(values.size, "older spelling of memory_mb"),
    "storage": _honoured(values.size, "older spelling of storage_mb"),
    "cpus": _honoured(
        values.number,
        "cores of each of its sandboxes, at most those of the machine; refused above `container.cpus` and `kubernetes.cpu`; "
        "does not hold, and is named, with `local` and where `bubblewrap` has no control group for it (`penstock doctor --sandbox`)",
    ),
    "build_timeout_sec": _honoured(
        values.number,
        "seconds in which its image must be built, where one is built, up to 3600 with containers and `sandbox.images.build_s` with bubblewrap",
    ),
    "docker_image": _honoured(
        values.image,
        "an image, empty for none; where it cannot be had, its Dockerfile is built (environment/Dockerfile, for tests tests/Dockerfile), "
        "else the task is refused",
    ),
    "os": replace(_refused("sandboxes run Linux", "linux"), any_case=True),
    "gpus": _refused("sandboxes have no GPU: remove it", 0),
    "gpu_types": _refused("sandboxes have no GPU: remove it", []),
    "tpu": _refused("sandboxes have no TPU: remove it"),
    "mcp_servers": _tables(
        "given to the programs of opencode, codex and qwen-code, which start them in the agent's sandbox; refused for other scaffolds",
        "name",
        "command",
        must=extras.servers_must,
    ),
    "mcp_servers.name": _honoured(extras.is_name, "1 to 64 letters, digits, _ and -"),
    "mcp_servers.transport": _refused(_NO_URL, extras.STDIO),
    "mcp_servers.url": _refused(_NO_URL),
    "mcp_servers.headers": _refused(f"{_NO_URL}, without headers"),
    "mcp_servers.command": _honoured(values.command, "a program, without a shell"),
    "mcp_servers.args": _honoured(extras.arguments, "its arguments"),
    "skills_dir": _honoured(
        values.path,
        "a directory of the environment, empty for none, copied to the program's skills by opencode, codex, qwen-code and claude-code; "
        "refused for others, and where no image is built and it is not there",
    ),
    **_healthcheck(
        "must succeed in the agent's sandbox before the agent starts, else the attempt is a failure of the platform"
    ),
    "allow_internet": _honoured(values.flag, "older spelling of network_mode: `true` is `public`"),
    **_network("agent's and tests' (none)"),
}

_NO_AGENT: Final = "no agent runs there: remove it"
_JUDGING: Final[Mapping[str, Key]] = {
    **{
        name: key for name, key in _ENVIRONMENT.items() if not name.startswith(("healthcheck", "mcp_servers"))
    },
    "env": _honoured(values.variables, "for the tests, above the Dockerfile's ENV"),
    **_network("the tests' (none)"),
    "healthcheck": _refused("tests/test.sh waits by itself: remove it"),
    "mcp_servers": _refused(_NO_AGENT, []),
    "skills_dir": _refused(_NO_AGENT, ""),
}

_COLLECT: Final[Mapping[str, Key]] = {
    "collect": _tables(
        "commands in the agent's sandbox after the agent has ended, as the agent; a failure changes nothing else",
        "command",
    ),
    "collect.command": _honoured(values.command, "run by bash"),
    "collect.timeout_sec": _honoured(values.seconds, "seconds (60)"),
    "collect.service": _refused(
        "commands run in the agent's sandbox, from which services are reached: remove it", "main"
    ),
    "collect.user": _refused("collected commands run as the agent: remove it"),
}
_ARTIFACT: Final[Mapping[str, Key]] = {
    "artifacts.source": _honoured(says="a path, absolute or in the work directory"),
    "artifacts.destination": _no_effect("where Harbor keeps a copy"),
    "artifacts.exclude": _honoured(
        says="patterns of names or relative paths below source; in the mode `shared` the tests get all changes of the work directory"
    ),
    "artifacts.service": _honoured(
        says="`main`; another one is refused: files are taken from the agent's sandbox"
    ),
}

_STEP_NETWORK: Final = {
    "network_mode": _refused(_SHARED, "no-network"),
    "allowed_hosts": _refused(_SHARED, []),
}
_STEPS: Final[Mapping[str, Key]] = {
    "steps": _tables(
        "several instructions for one sandbox, one after the other, each with tests of its own: task-directory.md, Several steps",
        "name",
        must=values.steps,
    ),
    "steps.name": _honoured(values.step_name, "the directory below steps/"),
    "steps.agent": _table("of this step"),
    "steps.agent.timeout_sec": _honoured(
        values.wall, "wall clock of this step, in seconds (that of `[agent]`)"
    ),
    "steps.agent.user": _honoured(
        values.user, f"in place of that of `[agent]`; the same for all steps, which share a sandbox; {_USER}"
    ),
    **_below("steps.agent", _STEP_NETWORK),
    "steps.verifier": _table("of this step's tests"),
    "steps.verifier.timeout_sec": _honoured(
        values.wall, "seconds of one run of test.sh (that of `[verifier]`)"
    ),
    "steps.verifier.env": _honoured(
        values.variables, "for the tests of this step, above those of `[verifier]`"
    ),
    "steps.verifier.user": _honoured(values.user, f"in place of that of `[verifier]`; {_USER}"),
    "steps.verifier.environment_mode": _honoured(values.mode, "in place of that of `[verifier]`"),
    "steps.verifier.environment": _table(
        "in place of that of `[verifier]`; its image: `docker_image`, tests/Dockerfile of the step, then as for the task"
    ),
    **_below("steps.verifier.environment", _JUDGING),
    **_below(
        "steps.verifier", {**_COLLECT, "collect": _tables("after the commands of `[verifier]`", "command")}
    ),
    **_below("steps.verifier", _STEP_NETWORK),
    "steps.min_reward": _honoured(
        values.min_reward,
        "the task ends after this step if its reward, or one of the named numbers of its reward.json, is less or missing",
    ),
    **_below(
        "steps",
        _healthcheck(
            "must succeed before the agent starts this step; a failure after the first step ends the attempt as the agent's fault"
        ),
    ),
    "steps.artifacts": _honoured(artifacts_must, "besides those of the task"),
    **_below("steps", _ARTIFACT),
    "multi_step_reward_strategy": _honoured(
        values.strategy,
        "`mean` (default): of all steps; `final`: the last step. A step that did not run counts as 0",
    ),
    "multi_step_reward_mode": _refused("write multi_step_reward_strategy"),
}

KEYS: Final[Mapping[str, Key]] = {
    "schema_version": _honoured(
        values.version, "any version 1; keys that came after 1.4 are refused by their names"
    ),
    "version": _no_effect("older spelling of schema_version, or the author's own", values.any_version),
    "source": _no_effect(),
    "artifacts": _honoured(
        artifacts_must,
        "files or directories of the work directory, `/logs/artifacts`, `/tmp` or, on an image of bubblewrap, of data; other places are refused",
    ),
    **_ARTIFACT,
    **_STEPS,
    "task.name": _honoured(says="the task's name where `[metadata].name` is not given"),
    "task.version": _no_effect(),
    "task.description": _no_effect(),
    "task.authors": _no_effect(),
    "task.keywords": _no_effect(),
    "agent.timeout_sec": _honoured(says="wall clock of one rollout, in seconds (900)"),
    "agent.stall_s": _honoured(
        says="ours: no completion open, no output, no CPU time for so long ends the attempt (`rollout.stall_s`)"
    ),
    "agent.max_turns": _honoured(says="ours: completions (the stage's)"),
    "agent.reference_sec": _honoured(
        says="ours: seconds of a good agent, at most the time of an attempt; speed is compared with it"
    ),
    "agent.user": _honoured(
        values.user, f"who runs the agent, its health check and its collected commands; {_USER}"
    ),
    **_below("agent", _network("the agent's (`[environment]`'s)")),
    **_below("environment", _ENVIRONMENT),
    "verifier.timeout_sec": _honoured(says="seconds of one run of test.sh (600)"),
    "verifier.env": _honoured(values.variables, "for tests/test.sh alone"),
    "verifier.performance": _honoured(
        values.component, "ours: the number of reward.json that is the reward (`reward`, or the only one)"
    ),
    "verifier.user": _honoured(values.user, f"who runs tests/test.sh; {_USER}"),
    "verifier.environment_mode": _honoured(
        values.mode,
        "`shared` (default): the tests get all changes of the work directory; `separate`: the declared artifacts; both in a fresh sandbox",
    ),
    "verifier.environment": _table(
        "an environment of the tests' own, from its `docker_image`, tests/Dockerfile or the task's environment; sets `separate`"
    ),
    **_below("verifier.environment", _JUDGING),
    **_below("verifier", _COLLECT),
    **_below("verifier", _network("the tests' (their environment's)")),
    "solution.env": _honoured(values.variables, "where the reference solution is run"),
}
_IN_METADATA: Final = (
    "author", "author_name", "author_email", "category", "description", "difficulty", "domain", "keywords", "license", "name", "tags", "url",
)  # fmt: skip
_READ_IN_METADATA: Final = ("category", "difficulty", "domain")
_DESCRIPTIONS: Final = frozenset(_IN_METADATA).union(
    key.rpartition(".")[2] for key, of in KEYS.items() if of.treatment is Treatment.NO_EFFECT
)
_NAMES: Final = tuple(
    # Keys of deeper tables have common names (args, url).
    dict.fromkeys(
        key.rpartition(".")[2] for key in KEYS if key.count(".") < 2 and not key.startswith("artifacts.")
    )
)


def check_keys(toml: str) -> None:
    """Refuse keys of a new task that would not be honoured; tasks accepted earlier are unaffected. ValueError, one sentence, names the keys."""
    found = list(islice(_wrong(read_task_toml(toml)), _MAX_FOUND))
    if wrong := list(dict.fromkeys(found)):  # each step may have the same fault
        left = len(wrong) - _MAX_NAMED
        least = "at least " if len(found) == _MAX_FOUND else ""
        more = f"; and {least}{left} more" if left > 0 else ""
        raise ValueError(f"task.toml: {'; '.join(wrong[:_MAX_NAMED])}{more}")


def _wrong(tables: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tables.items():
        if name == FREE:
            continue
        if name in TABLES:
            if not isinstance(value, dict):
                yield f"[{name}] must be a table, got {quoted(value)}"
                continue
            for inner, held in value.items():
                yield from _of_inner(name, inner, held)
        # A quoted key is not a key of the table.
        elif (table := name.partition(".")[0]) != name and table in (*TABLES, FREE):
            yield f"{quoted(name)} is not known: write its key below the table [{table}]"
        elif "." in name:
            yield f"{quoted(name)} is not known: remove it, or keep it below [metadata], which is yours"
        else:
            yield from _of_key(name, value)


def _of_inner(table: str, inner: str, value: Any) -> Iterator[str]:
    if "." in inner and f"{table}.{inner}" in KEYS:  # quoted: it is not that key
        yield f"{shown(table, table=True)} has the key {quoted(inner)}, which is not known: write it without quotes"
    else:
        yield from _of_key(f"{table}.{inner}", value)


def _of_key(name: str, value: Any) -> Iterator[str]:
    key, label = KEYS.get(name), shown(name)
    if key is None and _describes(name, value):
        return
    if key is None:
        yield f"{shown(name, table=isinstance(value, dict))} is not known: {_instead(name, value)}"
    elif key.treatment is Treatment.REFUSED:
        if not _stands(key, value):
            yield f"{label} = {quoted(value)} is not honoured: {key.says}"
    elif key.holds is not None and (flaws := list(_of_tables(name, key, value))):
        yield from flaws
    elif key.must is not None and (must := key.must(value)) is not None:
        yield f"{label} must be {must}, got {quoted(value)}"


def _describes(name: str, value: Any) -> bool:
    """Whether an unknown key is a text, number or date of `[task]`, which describes the task, and is not meant as a key of the format."""
    table, _, key = name.partition(".")
    plain = value if isinstance(value, list) else [value]
    return (
        table == "task"
        and "." not in key
        and key not in _READ_IN_METADATA
        and all(isinstance(each, str | int | float | date | time) for each in plain)
        and resembles(key) is None
    )


def is_foreign(table: str, key: str, value: Any) -> bool:
    """Whether a key at the top (`table` is empty) or of a table there is refused as unknown, and cannot be meant as one of the format or of
    `[metadata]`."""
    name = f"{table}.{key}" if table else key
    return (
        "." not in key
        and name not in KEYS
        and not _describes(name, value)
        and key not in _READ_IN_METADATA
        and resembles(key) is None
        and (table != "" or not get_close_matches(key, (FREE, *TABLES), 1, SLIP))
    )


def resembles(key: str) -> str | None:
    """The key of the format that an unknown one has as its name, or may be meant as; None for the name of a description."""
    if key in _DESCRIPTIONS:
        return None
    return next(iter(get_close_matches(key, _NAMES, 1, SLIP)), None)


def _of_tables(name: str, key: Key, value: Any) -> Iterator[str]:
    """The errors in the keys of a table below a table, or of a list of such tables."""
    held = [value] if key.holds == "table" else value
    if not isinstance(held, list) or not all(isinstance(each, dict) for each in held):
        yield f"{shown(name)} must be a {'table' if key.holds == 'table' else 'list of tables'}, got {quoted(value)}"
        return
    for table in held:
        for inner, inside in table.items():
            yield from _of_inner(name, inner, inside)
        for missing in key.needs:
            if missing not in table:
                yield f"{shown(f'{name}.{missing}')} is missing"


def _instead(name: str, value: Any) -> str:
    table, _, key = name.rpartition(".")
    own = [known.rpartition(".")[2] for known in KEYS if known.rpartition(".")[0] == table]
    if table == "task" and key in _READ_IN_METADATA:
        return f"write [{FREE}].{key}"
    if not table:
        own += [*TABLES, FREE]
        if key in _IN_METADATA:
            return f"write it below [{FREE}]"
    if meant := get_close_matches(key, own, 1, SLIP):
        inside = f"{table}.{meant[0]}" if table else meant[0]
        return _write(inside, value)
    if name == "solution.timeout_sec":
        return "remove it: a solution has the time of an agent"
    if elsewhere := [known for known in KEYS if known.rpartition(".")[2] == key and known.count(".") < 2]:
        taken = [known for known in elsewhere if KEYS[known].treatment is not Treatment.REFUSED]
        return _write((taken or elsewhere)[0], value)
    return f"remove it, or keep it below [{FREE}], which is yours"


def _write(name: str, value: Any) -> str:
    """The advice to write the known key or table `name` instead, with the next error that this would cause."""
    written, key = shown(name, table=name in (*TABLES, FREE)), KEYS.get(name)
    if key is not None and key.holds == "tables" and "." not in name:
        written = f"[[{name}]]"
    if key is not None and key.treatment is Treatment.REFUSED and not _stands(key, value):
        return f"{written} may be meant, which is not honoured: {key.says}"
    # The check of a table expects that its keys were checked.
    must = key.must(value) if key is not None and key.must is not None and key.holds is None else None
    return f"write {written}" + (f", which must be {must}" if must is not None else "")


def _stands(key: Key, value: Any) -> bool:
    """Whether the value of a refused key requests nothing."""
    if key.any_case and isinstance(value, str):
        value = value.lower()
    if type(value) is float and value.is_integer():  # a whole number to Harbor
        value = int(value)
    return any(type(value) is type(nothing) and value == nothing for nothing in key.asks_nothing)


def shown(name: str, *, table: bool = False) -> str:
    """`[agent].timeout_sec`, `source`, for a whole table `[agent]`, for a list of tables `[[steps]].name`; the name comes from an author."""
    head, dot, rest = name.partition(".")
    head, rest = head or '""', rest or '""'  # as TOML writes an empty key
    written = f"[{head}].{rest}" if dot else f"[{head}]" if table else head
    if dot and head in KEYS:
        written = f"[[{head}]].{rest}"
    return written if written.isprintable() and len(written) <= 120 else f"{quoted(written)}"
