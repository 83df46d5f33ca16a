"""One `key=value` of `--set`: the key as TOML writes it, the value TOML, or else a bare word."""

import re
import tomllib
from collections.abc import Iterable
from typing import Any, Final

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s."'=]+)"""
_KEY: Final = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_EACH: Final = re.compile(_PART)
_VALUE: Final = "value"
MAX_DEPTH: Final = 32
"""Parts of one key, at most: no section is nested that deeply."""


def key_of(assignment: str, option: str = "override") -> tuple[str, ...]:
    """The parts of the key that `assignment` sets. A part in quotes may hold dots. ConfigurationError without a key.

    >>> key_of('rollout.scaffolds."a/b.toml" = 1')
    ('rollout', 'scaffolds', 'a/b.toml')
    """
    found = _KEY.match(assignment)
    written = _EACH.findall(found[1]) if found is not None else []
    if not 0 < len(written) <= MAX_DEPTH:
        raise ConfigurationError(f"{option} {quoted(assignment)} is not of the form section.key=value")
    try:
        return tuple(next(iter(tomllib.loads(f"{each}=0"))) if each[0] in "\"'" else each for each in written)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{option} {quoted(assignment)} has an invalid key: {error}") from None


def assigned(assignment: str, option: str = "override") -> tuple[tuple[str, ...], Any]:
    """The key and the value of `assignment`. Raises ConfigurationError, one sentence, if it is not one key with one value.

    `option`: how the person gave it, for that sentence.

    >>> assigned("trainer.lr=1e-5"), assigned("run.name=first")
    ((('trainer', 'lr'), 1e-05), (('run', 'name'), 'first'))
    """
    key = key_of(assignment, option)
    found = _KEY.match(assignment)
    assert found is not None
    text = assignment[found.end() :].strip()
    refused = f"{option} {quoted(assignment)}"
    try:
        table = tomllib.loads(f"{_VALUE} = {text}")
    except tomllib.TOMLDecodeError:
        return key, text
    except RecursionError:
        raise ConfigurationError(f"{refused} is nested too deeply") from None
    except ValueError:
        raise ConfigurationError(f"{refused} has a number with too many digits") from None
    if table.keys() != {_VALUE}:
        raise ConfigurationError(f"{refused} has more than one key: give one at a time")
    return key, table[_VALUE]


def table_of(assignments: Iterable[str]) -> dict[str, Any]:
    """The table that assignments make, as TOML has it; of two values of a key the later counts. Raises ConfigurationError as `assigned` does.

    >>> table_of(["queue.capacity=18", "queue.group_size=4"])
    {'queue': {'capacity': 18, 'group_size': 4}}
    """
    table: dict[str, Any] = {}
    for path, value in map(assigned, assignments):
        node = table
        for part in path[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[path[-1]] = value
    return table
