"""`task.toml`: the settings of a task, as people write them.

Everything has a default, so an empty `task.toml` is a valid one. Keys that are not named here (Harbor's `author_email`,
`[solution]`, `[environment].docker_image`, …) are kept out of the way: read, not interpreted. One that is a slip of the pen away from
a name of ours (`[agent].timeout_secs`) is not admitted: its value would silently not hold.

    version = "1.0"

    [metadata]
    name = "agent-find-copy-1f0c9a52"
    domain = "agent"            # reasoning | coding | agent | general
    difficulty = "hard"
    tags = ["two-calls"]

    [agent]
    timeout_sec = 60.0          # wall clock of one rollout
    stall_s = 30.0              # no completion open, no output and no CPU time for so long ends the attempt
    max_turns = 4               # completions

    [verifier]
    timeout_sec = 20.0
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Domain = Literal["reasoning", "coding", "agent", "general"]
DOMAINS: Final[tuple[Domain, ...]] = get_args(Domain)

Seconds = Annotated[float, Field(gt=0, le=7 * 86400, strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, max_length=256)]
Count = Annotated[int, Field(gt=0, strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Metadata(_Table):
    """What the task is about; `family` and `phrasing` name the template that made it, if one did."""

    name: Text | None = None
    domain: Domain = "general"
    difficulty: Text = "unknown"
    family: Text | None = None
    phrasing: Annotated[int, Field(ge=0, strict=True)] | None = None
    tags: tuple[Text, ...] = ()


class AgentLimits(_Table):
    """Budgets of one rollout; `max_turns` None leaves it to the run's configuration. Seconds."""

    timeout_sec: Seconds = 900.0
    stall_s: Seconds = 60.0
    max_turns: Count | None = None


class VerifierLimits(_Table):
    """Budget of one run of `tests/test.sh`. Seconds."""

    timeout_sec: Seconds = 300.0


class Settings(_Table):
    """A whole `task.toml`; `environment` holds its table as it is."""

    version: Text = "1.0"
    metadata: Metadata = Metadata()
    agent: AgentLimits = AgentLimits()
    verifier: VerifierLimits = VerifierLimits()
    environment: dict[str, Any] = {}


def parse_settings(toml: str) -> Settings:
    """Read a `task.toml`. ValueError: one sentence that names the key, what it must be and what it is."""
    try:
        tables = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"task.toml: not valid TOML: {error}") from error
    try:
        return Settings.model_validate(tables)
    except ValidationError as error:
        raise ValueError(f"task.toml: {_sentence(error)}") from error


SLIP: Final = 0.8
"""How alike (difflib's ratio) an unknown key of as many words is to one of ours where it is taken for a misspelt one."""


def check_spelling(toml: str) -> None:
    """Refuse a key that is a slip of the pen away from one of ours. ValueError names both. For a task that is new: what was accepted stays so."""
    _check_spelling(tomllib.loads(toml), Settings, ())


def _check_spelling(table: Mapping[str, Any], known: type[BaseModel], above: tuple[str, ...]) -> None:
    fields = known.model_fields
    for key, value in table.items():
        inside = fields[key].annotation if key in fields else None
        if isinstance(inside, type) and issubclass(inside, BaseModel) and isinstance(value, dict):
            _check_spelling(value, inside, (*above, key))
        elif key not in fields:
            free = [name for name in fields if name not in table and name.count("_") == key.count("_")]
            if meant := get_close_matches(key, free, 1, SLIP):
                said = _key((*above, key)) if above or not isinstance(value, dict) else f"[{key}]"
                raise ValueError(f"task.toml: {said} is not known: write {_key((*above, meant[0]))}")


_MUST_BE: Final = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "string_too_long": "shorter",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
}
_BOUNDS: Final = {"gt": "more than", "ge": "at least", "le": "at most"}


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, as `[agent].timeout_sec must be a number, got 'x'`."""
    first = error.errors(include_url=False)[0]
    location, context = first["loc"], first.get("ctx", {})
    if first["type"] == "literal_error":
        must_be = "one of " + ", ".join(DOMAINS)
    elif first["type"] in _MUST_BE:
        must_be = _MUST_BE[first["type"]]
    else:
        must_be = next(
            (f"{words} {context[bound]:g}" for bound, words in _BOUNDS.items() if bound in context),
            first["msg"],
        )
    return f"{_key(location)} must be {must_be}, got {first['input']!r:.80}"


def _key(location: tuple[int | str, ...]) -> str:
    """`[agent].timeout_sec`, `version`, `[metadata].tags item 2`."""
    items = [f" item {part + 1}" for part in location if isinstance(part, int)]
    names = [part for part in location if isinstance(part, str)]
    is_table = len(names) > 1 or names[0] in ("metadata", "agent", "verifier", "environment")
    head = f"[{names[0]}]" if is_table else names[0]
    return ".".join([head, *names[1:]]) + "".join(items)
